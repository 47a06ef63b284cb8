"""Writes the Python file of an exported model."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from textwrap import indent
from typing import Any, cast

import torch
from transformers.conversion_mapping import get_checkpoint_conversion_mapping
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING
from transformers.models.llama.modeling_llama import LlamaAttention

from composer.errors import ExportError
from composer.exporting.functions import Functions
from composer.exporting.head_class import INPUTS, HeadClass
from composer.exporting.targets.target import OWN_TRUNK, model_rotation, with_model_rotation
from composer.exporting.template import (
    CONVERSION,
    FLA,
    FORWARD,
    HEADER,
    HEADS_BY_NUMBER,
    KEY_HEADS,
    LLAMA_FORWARD,
    MIXED,
    MIXING,
    MODEL,
    ONE_HEAD,
    ROTATED,
    RUN,
    SCALED,
    SEVERAL_HEADS,
    TABLE,
)
from composer.exporting.writing import class_texts, function_texts
from composer.model.configuration import host_configuration
from composer.model.head import Head, anatomy
from composer.model.hosts import HALVES, attention_of, attentions, layers_of
from composer.spec.layer_rules import key_heads_of
from converters.model_types import OWN, PREFIX

MIXING_HOOKS = '''        for projection in (self.q_proj, self.k_proj):
            projection.register_forward_pre_hook(self.use_mixed)

    def use_mixed(self, _: nn.Module, inputs: Any) -> Any:
        """The hook before a projection. It is a method, as a copy of the model copies methods and shares functions."""
        return inputs if self.mixed is None else (self.mixed,)
'''
PARAMETERS = '''

class PartParameters(nn.Module):
    """The parameters of a part. A call returns one by its name: accelerate loads offloaded ones while their module is called."""

    def __init__(self, **parameters: Tensor) -> None:
        super().__init__()
        for name, values in parameters.items():
            self.register_parameter(name, nn.Parameter(values))

    def forward(self, name: str) -> Tensor:
        return getattr(self, name)
'''
INITIALISATION = """
    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, PartParameters):
            for parameter in module.parameters():
                if not getattr(parameter, "_is_hf_initialized", False):
                    parameter.normal_(std=self.config.initializer_range)
"""
"""These two are in a file whose heads have parameters."""

SCALE_TOLERANCE = 1e-9
"""The largest relative difference between equal scales of logits."""


@dataclass(frozen=True)
class Exported:
    """An exported file. text: its contents. file: its name without the ending. name: the beginning of its classes' names.

    heads: for each layer, the classes of its heads by name; empty where all layers have the same. key_heads: for each layer, the
    numbers of each head's key heads; empty where the heads of every layer follow each other. one_by_one: why a head takes one token
    after the other; None where all take many at once.
    """

    text: str
    file: str
    name: str
    heads: tuple[Mapping[str, str], ...]
    key_heads: tuple[Mapping[str, Sequence[int]], ...]
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


@dataclass(frozen=True)
class _Heads:
    """The heads of a model. classes: of all heads; by_layer: for each layer, the names of its heads' classes; key_heads: for each
    layer, the numbers of each head's key heads, or nothing if the heads of every layer follow each other."""

    classes: Sequence[HeadClass]
    by_layer: tuple[Mapping[str, str], ...]
    key_heads: tuple[Mapping[str, Sequence[int]], ...]

    @property
    def several(self) -> bool:
        """Whether a layer has several."""
        return any(len(names) > 1 for names in self.by_layer)

    @property
    def kernels(self) -> list[str]:
        """The operations of fla that they call, as ``module:name``."""
        return sorted({kernel for head in self.classes for kernel in head.kernels()})

    @property
    def one_class(self) -> HeadClass | None:
        """The class of all heads, or None if there are several."""
        return self.classes[0] if len(self.classes) == 1 and not self.several else None

    def collect_functions(self) -> Functions:
        """Return the functions that their methods call."""
        kernels = {kernel.rpartition(":")[2] for kernel in self.kernels}
        reserved = {*INPUTS, *kernels, "rotated", "attend", "owned", "check_cache", "reordered", "runs_fla"}
        fields_read = {field for head in self.classes for field in head.fields()}
        return Functions((call for head in self.classes for call in head.calls()), reserved, fields_read)


def write_file(model: Any) -> Exported:
    """Return the file for a composed model. Raises ExportError if a part of the model cannot be written."""
    resolved, host, heads = model.config.read_spec(), _host_of(model), _heads_of(model)
    title = resolved.name or "composed"
    name = _camel(title) + ("Composed" if f"{_camel(title)}Config" == host.config.__name__ else "")
    functions, one_of_several = heads.collect_functions(), heads.several and not heads.key_heads
    head_texts = [head.text(functions, f"{name}Config", host.rotary, is_one_of_several=one_of_several) for head in heads.classes]
    fields = {
        "title": _one_line(f"{title} heads in a {host.type} model. {resolved.paper or ''}"),
        "Name": name,
        "model_type": f"{re.sub(r'[^A-Za-z0-9_-]', '-', title)}_{host.type}",
        "base": model.base_model_prefix,
        "scaled": SCALED if _scales(model) else "",
        **_host_fields(host),
        **_part_fields(heads),
        **_table_fields(heads),
        **_attend_fields(heads),
    }
    fields["forward"] = (LLAMA_FORWARD if model.config.model_type == OWN else FORWARD).substitute(fields)
    fields["conversion"] = CONVERSION.substitute(fields) if _converts_checkpoints(host) else ""
    numbers = "".join(f"{number} = {value!r}\n" for number, (value, _) in functions.numbers.items())
    parts = [
        *(f"\n\n{text}\n" for text in head_texts),
        MODEL.substitute(fields),
        _rotation_lines(host.attention) if any(item.rotates for item in heads.classes) else "",
        f"\n\n# The functions that heads call.\n\n{numbers}" if functions.trees else "",
        *(f"\n\n{text}\n" for text in (*class_texts(functions), *function_texts(functions))),
    ]
    body = "".join(parts)
    text = re.sub(r"\n{4,}", "\n\n\n", HEADER.substitute(fields, imports=_imports(body, host)) + body)
    file = f"modeling_{re.sub(r'[^A-Za-z0-9]', '_', title)}"
    compile(text, f"{file}.py", "exec")
    slow = next((item.one_by_one for item in heads.classes if item.one_by_one is not None), None)
    by_layer = () if heads.one_class else heads.by_layer
    return Exported(text, file, name, by_layer, heads.key_heads, fields["model_type"], host.type, slow)


def _host_fields(host: _Host) -> dict[str, str]:
    return {
        "host_type": host.type,
        "host_config": host.config.__name__,
        "host_model": host.model.__name__,
        "host_causal": host.causal.__name__,
        "host_attention": host.attention.__name__,
        "layers": host.layers,
        "attention": host.attention_name,
    }


def _part_fields(heads: _Heads) -> dict[str, str]:
    """Return what a file has only if its heads need it: parameters, projections from mixed states, kernels."""
    mixes, has_parameters = any(item.mixes for item in heads.classes), any(item.parameters for item in heads.classes)
    if mixes and heads.several:
        raise ExportError("a layer has heads of several compositions, and some mix what queries and keys are projected from")
    return {
        "precise": repr(sorted({name for item in heads.classes for name in item.precise})),
        "mixing_hooks": MIXING_HOOKS if mixes else "",
        "mixing": MIXING if mixes else "",
        "mixed": MIXED if mixes else "",
        "parameters": PARAMETERS if has_parameters else "",
        "initialisation": INITIALISATION if has_parameters else "",
        "fla": _fla(heads.kernels),
    }


def _table_fields(heads: _Heads) -> dict[str, str]:
    """Return how a file states the class of each head: in its configuration, or in the text if all heads have one."""
    if heads.one_class is not None:
        names = sorted({name for names in heads.by_layer for name in names})
        heads_text = ", ".join(f'{{"{name}": {heads.one_class.name}(config)}}' for name in names)
        return {"table": "", "configured": "", "heads_field": "", "heads": heads_text}
    key_heads = "    key_heads: list[dict[str, list[int]]] | None = None\n" if heads.key_heads else ""
    return {
        "table": TABLE.substitute(head_classes=", ".join(f'"{head.name}": {head.name}' for head in heads.classes)),
        "configured": ", and for each layer the classes of its heads by their names",
        "heads_field": f"    heads: list[dict[str, str]] | None = None\n{key_heads}",
        "heads": "{name: HEADS[head](config) for name, head in config.heads[layer_idx].items()}",
    }


def _attend_fields(heads: _Heads) -> dict[str, str]:
    """Return the function that calls a layer's heads."""
    body = HEADS_BY_NUMBER if heads.key_heads else SEVERAL_HEADS if heads.several else ONE_HEAD
    has_sinks = any(head.shape.sinks for head in heads.classes)
    sinks = "" if not has_sinks else ", s_aux[queries]" if heads.several else ", s_aux"
    run = indent(RUN, "    ") if heads.several else RUN
    return {
        "key_heads": KEY_HEADS if heads.key_heads else "",
        "sinks_argument": "    s_aux: Tensor | None = None,  # H\n" if has_sinks else "",
        "attend": body.replace("$run", run).replace("$sinks", sinks),
        "what": "composed heads" if heads.several else "a composed head",
        "pronoun": "them" if heads.several else "it",
    }


def _converts_checkpoints(host: _Host) -> bool:
    """True if transformers renames the weights of the host's published files."""
    names = host.type, host.model.__name__, host.causal.__name__
    return any(get_checkpoint_conversion_mapping(name) for name in names)


def _scales(model: Any) -> bool:
    """True if a layer's logits are not divided by the root of D, as those of heads are."""
    facts = (attention.facts for _, attention in attentions(model))
    return any(abs(layer.scale * layer.head_dim**0.5 - 1) > SCALE_TOLERANCE for layer in facts)


def _host_of(model: Any) -> _Host:
    is_own_host = model.config.model_type == OWN
    if is_own_host:
        _check_trunk(model.config)
    kind = "llama" if is_own_host else model.config.model_type.removeprefix(PREFIX)
    config: Any = host_configuration(kind)
    base: Any = MODEL_MAPPING[config]
    module: Any = sys.modules[base.__module__]
    layers_name, layers = layers_of(model.base)
    result = attention_of(layers[0])
    assert result is not None, "layers_of has looked"
    attention = module.LlamaAttention if is_own_host else type(result[1]).__mro__[2]
    rotary = module.LlamaRotaryEmbedding if is_own_host else type(getattr(model.base, "rotary_emb", None))
    alike = issubclass(rotary, torch.nn.Module) and "layer_type" not in signature(rotary.forward).parameters
    causal: Any = MODEL_FOR_CAUSAL_LM_MAPPING[config]
    return _Host(kind, module, config, base, causal, attention, layers_name, result[0], rotary.__name__ if alike else None)


def _check_trunk(config: Any) -> None:
    """Raise ExportError if the trunk differs from transformers' Llama."""
    for field, value in OWN_TRUNK.items():
        if getattr(config, field) != value:
            raise ExportError(
                f"the trunk has {field} {getattr(config, field)}; expected {value}, as in transformers' Llama, on which the file "
                "builds"
            )


def _heads_of(model: Any) -> _Heads:
    rope = model_rotation(model.config.read_spec().dimensions)
    classes: list[HeadClass] = []
    by_layer = []
    for _, attention in attentions(model):
        names = {}
        for group in attention.composed._groups:
            compiled = anatomy(cast("Head", attention.composed._modules[group.head]))
            head, model_rotates = with_model_rotation(compiled.head, rope), bool(attention.facts.rotates) or rope is not None
            same = (
                item
                for item in classes
                if (item.head, item.shape, item.model_rotates) == (head, compiled.shape, model_rotates)
                and item.serves(compiled.place)
            )
            result = next(same, None)
            if result is None:
                wish = _camel(group.head) + ("" if group.head == "head" else "Head")
                count = sum(item.name.rstrip("0123456789") == wish for item in classes)
                result = HeadClass(f"{wish}{count + 1 if count else ''}", head, compiled.shape, compiled.place, model_rotates)
                classes.append(result)
            names[group.head] = result.name
        by_layer.append(names)
    return _Heads(classes, tuple(by_layer), _numbered_heads(model))


def _numbered_heads(model: Any) -> tuple[dict[str, list[int]], ...]:
    """Return for each layer the numbers of the key heads of its groups; nothing if the groups of every layer follow each other."""
    layers = [attention.composed._groups for _, attention in attentions(model)]
    if all(group.numbers is None for groups in layers for group in groups):
        return ()
    return tuple(
        {group.head: list(numbers) for group, numbers in zip(groups, key_heads_of(groups), strict=True)} for groups in layers
    )


def _rotation_lines(host: type) -> str:
    if host is LlamaAttention:
        return ROTATED
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
    """Return the imports that the rest of a file uses."""

    def is_used(name: str) -> bool:
        return re.search(rf"(?<![\w.]){name}\b", body) is not None

    names = [host.causal.__name__, host.model.__name__, host.attention.__name__, host.rotary or "", "apply_rotary_pos_emb"]
    used_names = [name for name in sorted(names) if name and is_used(name)]
    conversions = [f"{name}_checkpoint_conversion_mapping" for name in ("get", "register")]
    conversions = [name for name in conversions if is_used(name)]
    collections = [name for name in ("Callable", "Iterable", "Iterator", "Mapping", "Sequence") if is_used(name)]
    standard = [
        *(f"import {name}" for name in ("itertools", "math") if is_used(name)),
        *([f"from collections.abc import {', '.join(collections)}"] if collections else []),
        "from copy import copy",
        *(["from dataclasses import dataclass"] if is_used("dataclass") else []),
        *(["from functools import partial"] if is_used("partial") else []),
        *(["from itertools import repeat"] if is_used("repeat") else []),
        "from typing import Any",
    ]
    others = [
        "import torch",
        *(["import torch.nn.functional as F"] if is_used("F") else []),
        "from torch import Tensor, nn",
        "from transformers.cache_utils import Cache, CacheLayerMixin",
        *([f"from transformers.conversion_mapping import {', '.join(conversions)}"] if conversions else []),
        "from transformers.modeling_outputs import BaseModelOutputWithPast",
        "from transformers.modeling_utils import AttentionInterface",
        f"from {host.config.__module__} import {host.config.__name__}",
        f"from {host.module.__name__} import {', '.join(used_names)}",
    ]
    return "\n".join([*standard, "", *others])


def _fla(kernels: Sequence[str]) -> str:
    """Return the imports of operations of fla, by module and name, and the condition under which they are called."""
    if not kernels:
        return ""
    names = [kernel.rpartition(":")[2] for kernel in kernels]
    imports = "".join(f"        from {kernel.replace(':', ' import ')}\n" for kernel in kernels)
    return FLA.substitute(none=" = ".join([*names, "None"]), imports=imports)


def _camel(name: str) -> str:
    """Return a name as the beginning of a class's name."""
    camel = "".join(part.capitalize() for part in re.split(r"[^A-Za-z0-9]+", name))
    return camel if camel.isidentifier() else f"Composed{camel}"


def _one_line(text: str) -> str:
    """Return a text on one line, with spaces for quotes, backslashes and characters that cannot be printed."""
    return " ".join("".join(letter if letter.isprintable() and letter not in '"\\' else " " for letter in text).split())
