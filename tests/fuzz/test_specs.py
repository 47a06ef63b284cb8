"""Any contents of a spec are accepted or rejected with a message: trees, bytes and overrides, up to the model's plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

import composer
from composer.building.in_memory import build_fresh
from composer.spec import load_spec, shipped_specs
from composer.spec.dimensions import Dimensions
from composer.spec.explain import explain_resolved
from composer.spec.loading import load_specs, resolve_spec
from composer.spec.places import plain
from composer.spec.reading import read_file
from tests.fuzz.mutations import CUTS, EDITS, VALUES, as_json, cut, edited
from tests.fuzz.outcomes import fuzz, outcome

TRUNK = {"width": 16, "layers": 2, "heads": 4, "key_heads": 2, "vocabulary": 32}
SIZE = Dimensions(hidden_size=32, layers=4, heads=4, key_heads=2, head_dim=8, rope_theta=1e4)
PATHS = sorted(shipped_specs().values())
LARGE = 10_000_000
"""Parameters of a model beyond which it is planned alone."""


def tree(path: Path) -> Any:
    """Return a file's own document as JSON. The files that it extends are named by their paths."""
    document = json.loads(json.dumps(plain(read_file(path, path.name))))
    return document | ({"extends": str(path.parent / document["extends"])} if "extends" in document else {})


SPECS = st.sampled_from([tree(path) for path in PATHS])
TEXTS = st.sampled_from([path.read_bytes() for path in PATHS if b"extends" not in path.read_bytes()])


def used(source: Any, overrides: tuple[str, ...] = ()) -> None:
    """Resolve and explain the spec, write its JSON, and build it if it has a small trunk."""
    spec = load_spec(source, overrides)
    if spec.vary is not None:
        return
    resolved = resolve_spec(spec, None if spec.trunk else SIZE)
    assert resolved.hash == type(resolved).model_validate_json(resolved.model_dump_json()).hash
    explained = explain_resolved(resolved, sequence=64)
    assert explained.model_dump_json()
    if resolved.trunk is not None:
        composer.build_folder(spec, out="not-written", fresh=True, dry_run=True)
        trunk = resolved.trunk
        numbers = trunk.layers * trunk.heads * trunk.width * max(trunk.width, trunk.mlp.width or 0) + trunk.width * trunk.vocabulary
        if numbers < LARGE:
            build_fresh(resolved)


@fuzz(st.tuples(SPECS, EDITS, st.booleans()), examples=60)
def test_edited_specs_are_used_or_refused(example: Any, folder: Path) -> None:
    document, edits, own = example
    text = as_json(edited(document | ({"trunk": TRUNK} if own else {}), edits))
    path = folder / "x.yaml"
    path.write_bytes(text)
    outcome(lambda: used(path))
    outcome(lambda: load_specs(str(path)))


@fuzz(st.tuples(TEXTS, CUTS), examples=60)
def test_specs_of_damaged_bytes_are_used_or_refused(example: Any, folder: Path) -> None:
    path = folder / "x.yaml"
    path.write_bytes(cut(*example))
    outcome(lambda: used(path))


STEPS = st.lists(
    st.sampled_from(
        ["head", "heads", "memory", "layers", "trunk", "recipe", "0", "-1", "1", "size", "gate", "kind", "use", "at", "lr", "x"]
    ),
    max_size=5,
).map(".".join)
SETTINGS = st.tuples(STEPS | st.text(max_size=20), VALUES.map(lambda value: as_json(value).decode()) | st.text(max_size=20)).map(
    "=".join
)


@fuzz(st.tuples(SPECS, st.lists(SETTINGS, min_size=1, max_size=3)), examples=60)
def test_random_overrides_are_applied_or_refused(example: Any, folder: Path) -> None:
    document, overrides = example
    outcome(lambda: used(document, tuple(overrides)))
