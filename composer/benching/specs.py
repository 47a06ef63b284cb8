"""Builds specs that are named in place of models, for the bench alone. Their heads are random, which changes no time."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from composer.api import BuildOptions, run_build
from composer.errors import BenchError
from composer.spec.loading import load_spec, names_a_spec
from composer.spec.on_hub import is_spec_on_hub


@contextmanager
def built(named: Sequence[str], seed: int) -> Iterator[tuple[tuple[str, ...], Mapping[str, str]]]:
    """The folders and models to time, and a description of each built folder, by its path. Specs are built on the first model among
    ``named`` or, where there is none, on their own trunk, in a temporary folder that is removed after the block.

    Raises BenchError for a spec without a model or trunk to build it on, and SpecError, SourceError and BuildError.
    """
    specs = [one for one in named if names_a_spec(one) or is_spec_on_hub(one)]
    if not specs:
        yield tuple(named), {}
        return
    source = next((one for one in named if one not in specs), None)
    with tempfile.TemporaryDirectory(prefix="compose-bench-") as folder:
        paths, said = [], {}
        for number, one in enumerate(named):
            if one not in specs:
                paths.append(one)
                continue
            spec = load_spec(one)
            if source is None and spec.trunk is None:
                raise BenchError(
                    f"{one} is a spec, and models are timed. Name one beside it, for it to be built on (`compose bench SOURCE "
                    f"{one} …`), or build it: `compose build {one} --from SOURCE`"
                )
            out = Path(folder) / str(number) / spec.name
            fresh = spec.trunk is not None
            run_build(BuildOptions(spec, None if fresh else source, out, fresh=fresh, seed=seed))
            paths.append(str(out))
            said[str(out)] = f"the spec {one}" if fresh else f"the spec {one} on {source}"
        yield tuple(paths), said
