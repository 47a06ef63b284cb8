"""The names and shapes of fresh parameters are known before a build and equal the model's."""

from __future__ import annotations

from typing import Any

from torch import nn

import composer
from composer.graph.rules import RESERVED
from composer.spec.resolve import fresh_parameters
from tests.composer.model.models import llama, student, tokens
from tests.shipped import SHIPPED


def test_models_have_the_declared_parameters() -> None:
    source = llama()
    for name in SHIPPED:
        model = student(name, "trunk=null", source=source)
        announced = {name: fresh.shape for name, fresh in fresh_parameters(model.config.read_spec()).items()}
        assert announced == {name: tuple(p.shape) for name, p in model.named_parameters() if ".composed." in name}


def test_parameter_names_contain_layer_head_part_and_tensor() -> None:
    names = fresh_parameters(student("lolcats").config.read_spec())
    assert "model.layers.2.self_attn.composed.head.feature_map.query_weight" in names
    assert "model.layers.0.self_attn.composed.head.window.weight" in names


def test_attributes_of_pytorch_modules_are_reserved_names() -> None:
    own = {name for name in dir(nn.Module()) if name[0].islower()}
    assert own | {"smart_apply", "empty_state", "join", "mix", "split"} == RESERVED, "one is transformers', the others the head's"


def test_every_other_attribute_of_head_modules_is_reserved_or_a_part() -> None:
    """Every attribute of a layer's heads that could be the name of a memory or a head is reserved, or is a part."""
    model: Any = student("lolcats")
    composed = model.model.layers[0].self_attn.composed
    for module in (composed, composed.head):
        own = {name for name in dir(module) if name[0].islower()}
        assert own <= RESERVED | set(module._modules)


def test_names_of_dictionary_methods_are_allowed() -> None:
    """Memories and heads may have the names of dictionary methods: such a model runs and can be saved."""
    memory = [{"kind": "window", "size": 4, "name": "keys", "weight": "learned"}, {"kind": "state", "name": "values"}]
    spec = {
        "compose": 1,
        "name": "x",
        "heads": {"items": {"feature_map": "hedgehog", "memory": memory}},
        "layers": [{"at": "all", "use": "items"}],
    }
    model = composer.build(spec, llama())
    names = fresh_parameters(model.config.read_spec())
    assert (
        {"keys.weight", "feature_map.query_weight"}
        <= {name.partition(".items.")[2] for name in names}
        <= {name.partition(".items.")[2] for name in model.state_dict()}
    )
    cache = model(tokens(1, 9), use_cache=True).past_key_values
    assert {"items.keys.key", "items.values.state"} <= set(cache.state(0).tensors)
