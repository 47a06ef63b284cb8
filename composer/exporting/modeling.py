"""Writes the Python file of an exported model."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any, cast

import torch
from transformers.conversion_mapping import get_checkpoint_conversion_mapping
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING

from blocks.positions import Rope
from composer.errors import ExportError
from composer.exporting.functions import Functions
from composer.exporting.head_class import INPUTS, HeadClass
from composer.exporting.template import CONVERSION, HEADER, MIXING, MIXING_HOOKS, MODEL
from composer.exporting.writing import class_texts, function_texts
from composer.graph.composition import HeadSpec
from composer.model.head import Head, anatomy
from composer.model.hosts import HALVES, attention_of, attentions, layers_of
from converters.model_types import OWN, PREFIX


@dataclass(frozen=True)
class Exported:
    """text: of the file; file: its name without ending; name: the beginning of its classes' names; heads: for each layer, the
    classes of its heads by name; one_by_one: why a head takes one token after the other; None where all take many at once."""

    text: str
    file: str
    name: str
    heads: tuple[Mapping[str, str], ...]
    model_type: str
    host_type: str
    one_by_one: str | None


@dataclass(frozen=True)
class _Host:
    """The classes of transformers that a file builds on, and where layers and attention stand in them."""

    type: str
    module: Any
    config: Any
    model: Any
    causal: Any
    attention: Any
    layers: str
    attention_name: str
    rotary: str | None
    """The class of its rotation, where all layers rotate alike."""


def written(model: Any) -> Exported:
    """The file for a composed model. Raises ExportError with what cannot be written out."""
    resolved, host = model.config.resolved(), _host_of(model)
    title = resolved.name or "composed"
    name = _camel(title) + ("Composed" if f"{_camel(title)}Config" == host.config.__name__ else "")
    model_type = f"{re.sub(r'[^A-Za-z0-9_-]', '-', title)}_{host.type}"
    classes, by_layer = _head_classes(model)
    mixes = any(one.mixes for one in classes)
    if mixes and any(len(names) > 1 for names in by_layer):
        raise ExportError("a layer has heads of several compositions, and some mix what queries and keys are projected from")
    functions = Functions((call for one in classes for call in one.calls()), {*INPUTS, "rotated", "attend", "reordered"})
    heads = [one.text(functions, f"{name}Config", host.rotary) for one in classes]
    fields = {
        "title": re.sub(r'["\\\s]+', " ", f"{title} heads in a {host.type} model. {resolved.paper or ''}").strip(),
        "Name": name,
        "model_type": model_type,
        "host_type": host.type,
        "host_config": host.config.__name__,
        "host_model": host.model.__name__,
        "host_causal": host.causal.__name__,
        "host_attention": host.attention.__name__,
        "head_classes": ", ".join(f'"{one.name}": {one.name}' for one in classes),
        "attention_arguments": "config, layer_idx" if "layer_idx" in signature(host.attention).parameters else "config",
        "precise": repr(sorted({name for one in classes for name in one.precise})),
        "layers": host.layers,
        "attention": host.attention_name,
        "base": model.base_model_prefix,
        "mixing_hooks": MIXING_HOOKS if mixes else "",
        "mixing": MIXING if mixes else "",
        "mixed": "mixed" if mixes else "{}",
        "sinks": ", s_aux[queries]" if any(one.shape.sinks for one in classes) else "",
    }
    converted = any(get_checkpoint_conversion_mapping(one) for one in (host.type, host.model.__name__, host.causal.__name__))
    fields["conversion"] = CONVERSION.substitute(fields) if converted else ""
    numbers = "".join(f"{number} = {value!r}\n" for number, (value, _) in functions.numbers.items())
    parts = [
        *(f"\n\n{text}\n" for text in heads),
        MODEL.substitute(fields),
        _rotated(host.attention) if any(one.rotates for one in classes) else "",
        f"\n\n# The functions that heads call.\n\n{numbers}" if functions.trees else "",
        *(f"\n\n{text}\n" for text in (*class_texts(functions), *function_texts(functions))),
    ]
    body = "".join(parts)
    text = HEADER.substitute(fields, imports=_imports(body, host)) + body
    file = f"modeling_{re.sub(r'[^A-Za-z0-9]', '_', title)}"
    compile(text, f"{file}.py", "exec")
    slow = next((one.one_by_one for one in classes if one.one_by_one is not None), None)
    return Exported(text, file, name, tuple(by_layer), model_type, host.type, slow)


def _host_of(model: Any) -> _Host:
    own = model.config.model_type == OWN
    if own:
        _check_trunk(model.config)
    kind = "llama" if own else model.config.model_type.removeprefix(PREFIX)
    config: Any = CONFIG_MAPPING[kind]
    base: Any = MODEL_MAPPING[config]
    module: Any = sys.modules[base.__module__]
    layers_name, layers = layers_of(model.base)
    found = attention_of(layers[0])
    assert found is not None, "layers_of has looked"
    attention = module.LlamaAttention if own else type(found[1]).__mro__[2]
    rotary = module.LlamaRotaryEmbedding if own else type(getattr(model.base, "rotary_emb", None))
    alike = issubclass(rotary, torch.nn.Module) and "layer_type" not in signature(rotary.forward).parameters
    causal: Any = MODEL_FOR_CAUSAL_LM_MAPPING[config]
    return _Host(kind, module, config, base, causal, attention, layers_name, found[0], rotary.__name__ if alike else None)


def _check_trunk(config: Any) -> None:
    """Raises ExportError for a trunk that transformers' Llama is not."""
    expected = {"norm_type": "rms", "mlp_type": "gated", "position_embedding": "none", "residual_dropout": 0.0}
    for field, value in expected.items():
        if getattr(config, field) != value:
            raise ExportError(
                f"the trunk has {field} {getattr(config, field)}; expected {value}, as in transformers' Llama, on which the file "
                "builds"
            )


def _head_classes(model: Any) -> tuple[list[HeadClass], list[dict[str, str]]]:
    """The classes of all heads, and for each layer the names of its heads' classes."""
    rope = model_rotation(model)
    classes: list[HeadClass] = []
    by_layer = []
    for _, attention in attentions(model):
        names = {}
        for group in attention.composed._groups:
            own = anatomy(cast("Head", attention.composed._modules[group.head]))
            head, turns = with_model_rotation(own.head, rope), bool(attention.facts.turns) or rope is not None
            same = (
                one for one in classes if (one.head, one.shape, one.turns) == (head, own.shape, turns) and one.serves(own.place)
            )
            found = next(same, None)
            if found is None:
                wish = _camel(group.head) + ("" if group.head == "head" else "Head")
                count = sum(one.name.rstrip("0123456789") == wish for one in classes)
                found = HeadClass(f"{wish}{count + 1 if count else ''}", head, own.shape, own.place, turns)
                classes.append(found)
            names[group.head] = found.name
        by_layer.append(names)
    return classes, by_layer


def model_rotation(model: Any) -> Rope | None:
    """The rotation that the spec of a model on Llama's blocks states; None where the host rotates by its own code."""
    size = model.config.resolved().dimensions
    if model.config.model_type != OWN or size.rope_theta is None:
        return None
    return Rope(theta=size.rope_theta, scaling=size.rope_scaling)


def with_model_rotation(head: HeadSpec, rope: Rope | None) -> HeadSpec:
    """The head with a plain ``rope`` where the model around it can rotate. rope: as ``model_rotation`` returns it."""

    def is_models(position: Any) -> bool:
        return position.is_of_model or (rope is not None and position.base == rope.base)

    memories = (memory.model_copy(update={"position": Rope()}) if is_models(memory.turn) else memory for memory in head.memory)
    return head.model_copy(update={"memory": tuple(memories)})


def _rotated(host: type) -> str:
    function = sys.modules[host.__module__].apply_rotary_pos_emb  # type: ignore[attr-defined]
    both = next(iter(signature(function).parameters)) == "q"
    call = "apply_rotary_pos_emb(states, states[:, :1], cosine, sine)[0]" if both else "apply_rotary_pos_emb(states, cosine, sine)"
    double = "2 * " if host.__name__ in HALVES else ""
    return f'''

def rotated(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:  # B T H D
    """Queries or keys, rotated as the model does it: by its own function, of the coordinates that it rotates."""
    width = {double}cosine.shape[-1]
    states, rest = states[..., :width].transpose(1, 2), states[..., width:]
    return torch.cat(({call}.transpose(1, 2), rest), dim=-1)
'''


def _imports(body: str, host: _Host) -> str:
    """The imports that the rest of a file uses."""

    def used(name: str) -> bool:
        return re.search(rf"(?<![\w.]){name}\b", body) is not None

    names = [host.causal.__name__, host.model.__name__, host.attention.__name__, host.rotary or "", "apply_rotary_pos_emb"]
    own = [name for name in sorted(names) if name and used(name)]
    conversions = [f"{name}_checkpoint_conversion_mapping" for name in ("get", "register")]
    conversions = [name for name in conversions if used(name)]
    collections = [name for name in ("Callable", "Iterable", "Iterator", "Mapping", "Sequence") if used(name)]
    standard = [
        *(f"import {name}" for name in ("itertools", "math") if used(name)),
        *([f"from collections.abc import {', '.join(collections)}"] if collections else []),
        *(["from dataclasses import dataclass"] if used("dataclass") else []),
        *(["from functools import partial"] if used("partial") else []),
        *(["from itertools import repeat"] if used("repeat") else []),
        "from typing import Any, NamedTuple",
    ]
    others = [
        "import torch",
        *(["import torch.nn.functional as F"] if used("F") else []),
        "from torch import Tensor, nn",
        "from transformers.cache_utils import Cache, CacheLayerMixin",
        *([f"from transformers.conversion_mapping import {', '.join(conversions)}"] if conversions else []),
        "from transformers.masking_utils import AttentionMaskInterface",
        "from transformers.modeling_utils import AttentionInterface",
        f"from {host.config.__module__} import {host.config.__name__}",
        f"from {host.module.__name__} import {', '.join(own)}",
    ]
    return "\n".join([*standard, "", *others])


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in re.split(r"[^A-Za-z0-9]+", name))
