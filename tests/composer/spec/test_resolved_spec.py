"""The output of `compose show SPEC --from SOURCE` is an equivalent spec, and is rejected for other sizes."""

from __future__ import annotations

import pytest

from blocks.positions import Llama3Scaling
from composer.errors import SpecError
from composer.spec.built_models import document_of
from composer.spec.dimensions import Dimensions
from composer.spec.loading import load_specs, resolve_spec
from composer.spec.places import plain
from composer.spec.reading import read_text
from composer.spec.resolve import Resolved
from composer.spec.shipped import shipped_specs
from composer.spec.writing import to_yaml
from composer.weights.config import dimensions
from composer.weights.sources import describe_model
from tests.composer.programs import ROOT

EXAMPLE = dimensions(describe_model(ROOT / "examples" / "teacher").trunk)
SCALED = EXAMPLE.model_copy(
    update={"rope_scaling": Llama3Scaling(factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_length=8192)}
)


def written(resolved: Resolved) -> dict[str, object]:
    return plain(read_text(to_yaml(document_of(resolved.model_dump(mode="json"))), "resolved.yaml"))


@pytest.mark.parametrize("name", shipped_specs())
def test_a_resolved_spec_reads_back_with_the_same_hash(name: str) -> None:
    for spec in load_specs(name).values():
        for size in (None,) if spec.trunk else (EXAMPLE, SCALED):
            resolved = resolve_spec(spec, size)
            assert resolve_spec(written(resolved), size) == resolved  # and so has the same hash
            assert resolve_spec(written(resolved), size).hash == resolved.hash


def test_a_resolved_spec_does_not_depend_on_the_source() -> None:
    """Another rotation base changes the spec's meaning and not that of the resolved spec."""
    other = EXAMPLE.model_copy(update={"rope_theta": 5e5})
    resolved = resolve_spec("lolcats", EXAMPLE)
    assert resolve_spec("lolcats", other).hash != resolved.hash
    assert resolve_spec(written(resolved), other).hash == resolved.hash


def test_other_sizes_are_refused() -> None:
    document = written(resolve_spec("lolcats", EXAMPLE))
    other = EXAMPLE.model_copy(update={"layers": 5, "head_dim": 8})
    with pytest.raises(SpecError, match=r"^dimensions: .* a model of layers 2 \(here 5\), head_dim 32 \(here 8\)\."):
        resolve_spec(document, other)
    with pytest.raises(SpecError, match="there is no trunk|no `trunk`"):
        resolve_spec(document, None)
    document["trunk"] = {"width": 64, "layers": 2, "heads": 4, "vocabulary": 64}
    with pytest.raises(SpecError, match=r"hidden_size 128 \(here 64\)"):
        resolve_spec(document, None)
    del document["trunk"]
    assert resolve_spec(document, other, ["dimensions=null"]).dimensions == other


def test_layers_and_groups_of_heads_are_written() -> None:
    size = Dimensions(hidden_size=64, layers=6, heads=8, key_heads=4, head_dim=8, rope_theta=1e4)
    spec = {
        "compose": 1,
        "name": "mixed",
        "head": {"memory": [{"kind": "window", "size": 8, "evict": "drop"}]},
        "heads": {"exact": {"memory": ["full"]}},
        "layers": [
            {"at": [0, -1], "use": "exact"},
            {"at": 2, "use": [{"head": "exact", "heads": "1/4"}, {"head": "head", "heads": "3/4"}]},
            {"at": 3, "use": "source"},
        ],
    }
    resolved = resolve_spec(spec, size)
    document = written(resolved)
    assert document["layers"] == (
        {"at": (0, 5), "use": "exact"},
        {"at": 2, "use": ({"head": "exact", "heads": 2}, {"head": "head", "heads": 6})},
        {"at": 3, "use": "source"},
    )
    assert resolve_spec(document, size) == resolved
