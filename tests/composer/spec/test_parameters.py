"""Fresh parameters are known before anything is built, by the names and shapes that the model then has."""

from __future__ import annotations

from typing import Any

from torch import nn

import composer
from composer.graph.rules_of_spec import RESERVED
from composer.spec.parameters import fresh_parameters
from tests.composer.model.models import llama, student, tokens
from tests.shipped import SHIPPED


def test_the_model_has_the_parameters_that_were_announced() -> None:
    source = llama()
    for name in SHIPPED:
        model = student(name, "trunk=null", source=source)
        announced = {name: fresh.shape for name, fresh in fresh_parameters(model.config.resolved()).items()}
        assert announced == {name: tuple(p.shape) for name, p in model.named_parameters() if ".composed." in name}


def test_a_name_says_layer_head_part_and_tensor() -> None:
    names = fresh_parameters(student("lolcats").config.resolved())
    assert "model.layers.2.self_attn.composed.head.feature_map.query_weight" in names
    assert "model.layers.0.self_attn.composed.head.window.weight" in names


def test_reserved_names_are_pytorchs() -> None:
    own = {name for name in dir(nn.Module()) if name[0].islower()}
    assert own | {"smart_apply", "empty_state", "mix", "split"} == RESERVED, "one is transformers', the others the head's"


def test_nothing_else_of_a_heads_modules_stands_in_the_way_of_a_name() -> None:
    """What a layer's heads hold by attributes that a memory or a head could be called by is reserved, or a part itself."""
    model: Any = student("lolcats")
    composed = model.model.layers[0].self_attn.composed
    for module in (composed, composed.head):
        own = {name for name in dir(module) if name[0].islower()}
        assert own <= RESERVED | set(module._modules)


def test_names_that_dictionaries_have_are_free() -> None:
    """For memories, and for heads: a model with such names runs, and its files hold them."""
    memory = [{"kind": "window", "size": 4, "name": "keys", "weight": "learned"}, {"kind": "state", "name": "values"}]
    spec = {
        "compose": 1,
        "name": "x",
        "heads": {"items": {"feature_map": "hedgehog", "memory": memory}},
        "layers": [{"at": "all", "use": "items"}],
    }
    model = composer.build(spec, llama())
    names = fresh_parameters(model.config.resolved())
    assert (
        {"keys.weight", "feature_map.query_weight"}
        <= {name.partition(".items.")[2] for name in names}
        <= {name.partition(".items.")[2] for name in model.state_dict()}
    )
    cache = model(tokens(1, 9), use_cache=True).past_key_values
    assert {"items.keys.key", "items.values.state"} <= set(cache.state(0).tensors)
