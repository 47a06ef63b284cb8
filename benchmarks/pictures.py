"""Milliseconds of a picture, the fastest of five: of every shipped spec, and of random heads of up to three memories.

PYTHONPATH=. OMP_NUM_THREADS=1 python benchmarks/pictures.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

from hypothesis import HealthCheck, given, settings

from composer.drawing.picture import TYPICAL, picture
from composer.graph.wiring import build_graph
from composer.spec.loading import load_spec
from composer.spec.resolve import Group, Resolved, resolve
from tests.laws.draw import random_heads
from tests.shipped import SHIPPED

REPEATS, HEADS = 5, 200
SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much]


def main() -> None:
    shipped = []
    for name in SHIPPED:
        spec = load_spec(name)
        shipped.append(_measure_milliseconds(resolve(spec, None if spec.trunk else TYPICAL)))
    _print_times(f"{len(shipped)} shipped specs", shipped)
    _print_times(f"{HEADS} random heads", [_measure_milliseconds(resolved) for resolved in _draw_heads()])
    memories = [{"kind": "window", "name": f"m{index}", "weight": "learned"} for index in range(31)]
    head = {"feature_map": "elu", "memory": [*memories, "state"]}
    deep = resolve(load_spec({"compose": 1, "name": "deep", "head": head}), TYPICAL)
    _print_times("32 memories, the most", [_measure_milliseconds(deep)])


def _measure_milliseconds(resolved: Resolved) -> float:
    best = float("inf")
    for _ in range(REPEATS):
        build_graph.cache_clear()  # pyright: ignore[reportFunctionMemberAccess] - of lru_cache
        began = time.perf_counter()
        picture(resolved)
        best = min(best, time.perf_counter() - began)
    return 1000 * best


def _draw_heads() -> Iterator[Resolved]:
    specs: list[Resolved] = []

    @settings(max_examples=HEADS, derandomize=True, database=None, deadline=None, suppress_health_check=SLOW)
    @given(head_and_shape=random_heads())
    def collect(head_and_shape: tuple) -> None:
        head, shape = head_and_shape
        size = TYPICAL.model_copy(
            update={"layers": 1, **{name: getattr(shape, name) for name in ("hidden_size", "heads", "key_heads", "head_dim")}}
        )
        group = Group(head="head", heads=shape.heads, key_heads=shape.key_heads)
        specs.append(Resolved(compose=1, name="drawn", dimensions=size, heads={"head": head}, layers=((group,),)))

    collect()
    yield from specs


def _print_times(label: str, times: list[float]) -> None:
    print(f"{label}: median {statistics.median(times):.1f} ms, slowest {max(times):.1f} ms")


if __name__ == "__main__":
    main()
