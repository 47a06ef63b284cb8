"""How long a picture takes: every shipped spec, and random heads of up to three memories. Prints milliseconds, the fastest of five.

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
        shipped.append(_milliseconds(resolve(spec, None if spec.trunk else TYPICAL)))
    _say(f"{len(shipped)} shipped specs", shipped)
    _say(f"{HEADS} random heads", [_milliseconds(resolved) for resolved in _random()])
    memories = [{"kind": "window", "name": f"m{index}", "weight": "learned"} for index in range(31)]
    head = {"feature_map": "elu", "memory": [*memories, "state"]}
    _say("32 memories, the most", [_milliseconds(resolve(load_spec({"compose": 1, "name": "deep", "head": head}), TYPICAL))])


def _milliseconds(resolved: Resolved) -> float:
    best = float("inf")
    for _ in range(REPEATS):
        build_graph.cache_clear()  # pyright: ignore[reportFunctionMemberAccess] - of lru_cache
        began = time.perf_counter()
        picture(resolved)
        best = min(best, time.perf_counter() - began)
    return 1000 * best


def _random() -> Iterator[Resolved]:
    specs: list[Resolved] = []

    @settings(max_examples=HEADS, derandomize=True, database=None, deadline=None, suppress_health_check=SLOW)
    @given(drawn=random_heads())
    def collect(drawn: tuple) -> None:
        head, shape = drawn
        size = TYPICAL.model_copy(
            update={"layers": 1, **{name: getattr(shape, name) for name in ("hidden_size", "heads", "key_heads", "head_dim")}}
        )
        group = Group(head="head", heads=shape.heads, key_heads=shape.key_heads)
        specs.append(Resolved(compose=1, name="drawn", dimensions=size, heads={"head": head}, layers=((group,),)))

    collect()
    yield from specs


def _say(label: str, times: list[float]) -> None:
    print(f"{label}: median {statistics.median(times):.1f} ms, slowest {max(times):.1f} ms")


if __name__ == "__main__":
    main()
