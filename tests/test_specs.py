"""The shipped specs of LoLA and Latte agree with each other, and count what the papers count."""

from __future__ import annotations

import pytest

from blocks.operation import Kind
from composer.spec.loading import load_spec
from composer.spec.resolve import Dimensions, fresh_parameters, resolve
from composer.weights.config import own_parameters, trunk_from
from tests.shipped import on

LLAMA_1B = Dimensions(hidden_size=2048, layers=16, heads=32, key_heads=8, head_dim=64, rope_theta=5e5)
OF_LATTE = {
    "latte": "latte",
    "latte-pp": "latte",
    "latte-conv-pp": "latte-conv",
    "latte-rglru-pp": "latte-rglru",
    "latte-rglru-swa-pp": "latte-macchiato",
    "transformer-pp": "softmax",
}


@pytest.mark.parametrize(("row", "spec"), OF_LATTE.items())
def test_the_heads_of_lattes_table_1_equal_the_shipped_specs(row: str, spec: str) -> None:
    assert on(f"ablations/latte-table-1:{row}", LLAMA_1B).hash == on(spec, LLAMA_1B).hash


def test_the_convolution_with_a_window_is_macchiato_with_a_convolution() -> None:
    macchiato = load_spec("latte-macchiato", ["head.mix_input={kind: conv, kernel: 4}"])
    assert on("ablations/latte-table-1:latte-conv-swa-pp", LLAMA_1B).hash == resolve(macchiato, LLAMA_1B).hash


@pytest.mark.parametrize(
    ("row", "millions", "more"),
    [
        ("latte", 111, 0),
        ("latte-pp", 140, 0),
        ("latte-conv-pp", 140, 0),
        ("latte-conv-swa-pp", 153, 1),
        ("latte-rglru-pp", 139, 2),
        ("latte-rglru-swa-pp", 153, 3),
        ("transformer-pp", 151, 0),
    ],
)
def test_parameter_counts_match_lattes_table_1(row: str, millions: int, more: int) -> None:
    """Millions are truncated, and the difference to the paper is listed. Heads of latents alone have unused queries and keys."""
    spec = resolve(load_spec(f"ablations/latte-table-1:{row}"))
    unused = all(memory.reads is Kind.HIDDEN for memory in spec.heads["head"].memory)
    counted = [
        fresh.size
        for name, fresh in own_parameters(spec, trunk_from(spec, "float32")).items()
        if not (unused and name.endswith(("q_proj.weight", "k_proj.weight")))
    ]
    assert sum(counted) // 10**6 == millions + more


@pytest.mark.parametrize(
    ("name", "memory"),
    [
        ("gla", {"kind": "state", "gate": {"kind": "channel", "rank": 16}, "normalise": False}),
        ("retention", {"kind": "state", "gate": "constant", "normalise": False}),
    ],
)
def test_gla_and_retention_without_norm_and_scale_keep_their_former_hashes(name: str, memory: dict[str, object]) -> None:
    """The changelog says how to get the former gla and retention. The hashes of models that were built from them stay."""
    position = "rope" if name == "retention" else "none"
    before = {"position": position, "feature_map": "identity", "memory": [memory]}
    after = load_spec(name, ["head.output=null", "head.memory.0.scale=null"])
    assert resolve(after, LLAMA_1B).hash == resolve(load_spec({"compose": 1, "name": name, "head": before}), LLAMA_1B).hash
    assert on(name, LLAMA_1B).hash != resolve(after, LLAMA_1B).hash


@pytest.mark.parametrize(("row", "spec"), [("lolcats", "lolcats"), ("lola", "lola")])
def test_the_first_rows_of_lolas_table_1_equal_the_shipped_specs(row: str, spec: str) -> None:
    assert on(f"ablations/lola-cache-sizes:{row}", LLAMA_1B).hash == on(spec, LLAMA_1B).hash


@pytest.mark.parametrize("spec", ["lola", "lolcats-terraced"])
def test_weights_of_lolcats_fit_lola_and_its_variants(spec: str) -> None:
    """Names and shapes match: neither spec adds a parameter."""
    ours, theirs = (
        {name: fresh.shape for name, fresh in fresh_parameters(on(spec_name, LLAMA_1B)).items()} for spec_name in (spec, "lolcats")
    )
    assert ours == theirs


@pytest.mark.parametrize("name", ["gdn-hybrid", "kda-hybrid", "hypenet"])
def test_hybrids_keep_the_last_of_every_four_layers(name: str) -> None:
    spec = on(name, LLAMA_1B)
    grows = [any(memory.grows for group in layer for memory in spec.heads[group.head].memory) for layer in spec.layers]
    assert grows == [False, False, False, True] * 4


def test_layers_that_hybrids_keep_equal_the_source() -> None:
    kept = on("gdn-hybrid", LLAMA_1B).heads["source"]
    assert kept == on("softmax", LLAMA_1B).heads["head"]


def test_lola_is_not_trained() -> None:
    assert load_spec("lolcats").recipe is not None
    assert load_spec("lola").recipe is None
