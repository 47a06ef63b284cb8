"""Layers whose rotary frequencies depend on the text length are found in every form of a config."""

from __future__ import annotations

from typing import Any

import pytest

from converters.composed import family_of
from converters.rotary import LengthRotation
from converters.trunk import Sizes

SIZES = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "vocab_size": 50, "max_position_embeddings": 2048}
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "original_max_position_embeddings": 600}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}


def read(model_type: str, **config: Any) -> Sizes:
    whole = {"model_type": model_type, **SIZES, **config}
    return family_of(whole).read_config(whole, [])


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"rope_parameters": LONG}, LengthRotation("longrope", 4096)),
        ({"rope_parameters": LONG, "original_max_position_embeddings": 500}, LengthRotation("longrope", 500)),
        ({"rope_scaling": LONG, "rope_parameters": DYNAMIC}, LengthRotation("longrope", 4096)),
        ({"rope_scaling": {**LONG, "rope_type": "su"}}, LengthRotation("longrope", 600)),
        ({"rope_scaling": DYNAMIC}, LengthRotation("dynamic", 2048)),
        ({"rope_scaling": DYNAMIC, "max_position_embeddings": None}, LengthRotation("dynamic", None)),
    ],
)
def test_rotations_by_length_apply_to_all_layers(config: dict[str, Any], expected: LengthRotation) -> None:
    assert read("phi3", **config).length_rotations == dict.fromkeys(range(4), expected)


def test_original_length_may_be_outside_the_scaling() -> None:
    assert read("mistral", rope_parameters=LONG).length_rotations[0] == LengthRotation("longrope", 600)
    without = {**LONG, "original_max_position_embeddings": None}
    assert read("mistral", rope_parameters=without).length_rotations[0] == LengthRotation("longrope", 2048)


@pytest.mark.parametrize("rotation", [None, {"rope_type": "default"}, {"rope_type": "yarn", "factor": 2.0}])
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_other_rotations_do_not_depend_on_the_length(key: str, rotation: object) -> None:
    assert read("mistral", **{key: rotation}).length_rotations == {}


def test_rotations_by_length_may_differ_by_layer_type() -> None:
    types = ["sliding_attention", "full_attention"] * 2
    rotations = {"full_attention": DYNAMIC, "sliding_attention": {"rope_type": "default"}}
    rotations_of = read("gemma3_text", layer_types=types, sliding_window=8, rope_parameters=rotations).length_rotations
    assert rotations_of == dict.fromkeys((1, 3), LengthRotation("dynamic", 2048))


def test_the_older_form_of_gemma_3_applies_to_its_global_layers() -> None:
    rotations_of = read("gemma3_text", sliding_window=8, sliding_window_pattern=2, rope_scaling=DYNAMIC).length_rotations
    assert rotations_of == dict.fromkeys((1, 3), LengthRotation("dynamic", 2048))
