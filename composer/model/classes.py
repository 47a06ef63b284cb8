"""The classes of composed models, by their hosts, and their places among transformers' Auto classes.

The classifier of whole texts is a composed model whose last hidden states are averaged over a text's tokens.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from transformers.conversion_mapping import get_checkpoint_conversion_mapping, register_checkpoint_conversion_mapping
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_MAPPING,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSequenceClassification,
)
from transformers.utils.generic import can_return_tuple

from blocks.tensors import accumulating
from composer.errors import BuildError
from composer.model import own_host
from composer.model.call_arguments import check_passed
from composer.model.configuration import ComposedConfig, configuration_of, host_configuration
from composer.model.mixers import serve_cpu
from composer.model.modeling import ComposedForCausalLM, ComposedPreTrainedModel, composed_causal, composed_model
from composer.model.own_host import Model, Pretrained
from composer.reporting.progress import silent_transformers
from composer.system.trust import translate_transformers_errors
from converters.bounded import shorten
from converters.config import decode_floats
from converters.hosts import WHOLE
from converters.hybrid_layers import HYBRIDS
from converters.model_types import OWN, PREFIX


class ComposedForSequenceClassification(ComposedPreTrainedModel, Pretrained):
    """One document a row, one answer a document; the number of classes is transformers' ``num_labels``."""

    def __init__(self, config: ComposedConfig) -> None:
        super().__init__(config)
        self.num_labels = config.labels = config.num_labels or 2
        self.model: Any = composed_model(Model)(config)
        self.score = nn.Linear(config.hidden_size, self.num_labels, bias=False)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **passed: Any,
    ) -> SequenceClassifierOutput:
        """attention_mask: ``B T``, 1 for real tokens. labels: as transformers has them, ``B`` of whole numbers for classes.
        use_cache: without effect, as a text is classified in one call."""
        check_passed(passed)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            use_cache=False,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
        )
        logits = self.score(_mean(outputs.last_hidden_state, attention_mask))
        loss = None
        if labels is not None:
            loss = self.loss_function(
                labels=labels, pooled_logits=logits, config=self.config, num_items_in_batch=num_items_in_batch
            )
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


def _mean(hidden: Tensor, mask: Tensor | None) -> Tensor:
    """``B T C`` to ``B C``, over real tokens; 0 where a row has none."""
    kind = accumulating(hidden.dtype)
    if mask is None:
        return hidden.mean(1, dtype=kind).to(hidden.dtype)
    real = mask[:, -hidden.shape[1] :].bool()[..., None]
    total = torch.where(real, hidden, 0.0).sum(1, dtype=kind)
    return (total / real.sum(1).clamp(min=1)).to(hidden.dtype)


Composed: TypeAlias = ComposedForCausalLM | ComposedForSequenceClassification

OwnModel = composed_model(own_host.Model)
OwnForCausalLM = composed_causal(own_host.ForCausalLM)

AutoModel.register(ComposedConfig, cast("Any", OwnModel), exist_ok=True)
AutoModelForCausalLM.register(ComposedConfig, cast("Any", OwnForCausalLM), exist_ok=True)
AutoModelForSequenceClassification.register(ComposedConfig, cast("Any", ComposedForSequenceClassification), exist_ok=True)
# Trainer's label smoothing shifts the labels of classes with these names alone, and pipelines look here, too.
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[OWN] = OwnForCausalLM.__name__


def class_of(config: Any) -> Any:
    """Return the class of the models that have this configuration: a language model, or a classifier where its trunk has labels."""
    if config.model_type == OWN:
        return OwnForCausalLM if config.labels is None else ComposedForSequenceClassification
    return host_classes(config.model_type.removeprefix(PREFIX))[1]


def configuration_for(model_type: str) -> Any:
    """Return the configuration of this model type, with its classes among transformers' Auto classes."""
    return ComposedConfig if model_type == OWN else host_classes(model_type.removeprefix(PREFIX))[0]


ComposedForCausalLM.class_of = staticmethod(class_of)


@cache
def host_classes(host: str) -> tuple[type[Any], type[ComposedForCausalLM]]:
    """Return the configuration and the language model of composed models whose host has this model type."""
    configuration = configuration_of(host)
    plain = host_configuration(host)
    if host in WHOLE:
        return configuration, _make_whole_class(configuration, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[plain])
    if plain not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise BuildError(f'transformers has no language model of the family "{host}"')
    bare: Any = MODEL_MAPPING[plain]
    language: Any = MODEL_FOR_CAUSAL_LM_MAPPING[plain]
    if host in HYBRIDS:
        serve_cpu(sys.modules[bare.__module__])
    base, model = cast("Any", composed_model(bare)), cast("Any", composed_causal(language))
    base.config_class = model.config_class = configuration
    configuration.made_by = configuration_for, (configuration.model_type,)  # a pickled model finds all of this done
    # Without these, weights that transformers joins or renames as it loads them would remain random.
    for theirs, ours in ((host, configuration.model_type), (bare.__name__, base.__name__), (language.__name__, model.__name__)):
        conversion = get_checkpoint_conversion_mapping(theirs)
        if conversion is not None:
            register_checkpoint_conversion_mapping(ours, conversion, overwrite=True)
    AutoModel.register(configuration, base, exist_ok=True)
    AutoModelForCausalLM.register(configuration, model, exist_ok=True)
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[configuration.model_type] = model.__name__
    return configuration, model


def _make_whole_class(configuration: Any, host: Any) -> Any:
    """Return the class of composed models that read images. In files, tensors have the names of modules, so that no conversion
    is registered."""
    model = cast("Any", composed_causal(host))
    model.config_class = configuration
    configuration.made_by = configuration_for, (configuration.model_type,)
    for auto in (AutoModelForCausalLM, AutoModelForImageTextToText):
        auto.register(configuration, model, exist_ok=True)
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[configuration.model_type] = model.__name__
    return model


def find_uncovered_by_host(config: Mapping[str, Any], tensors: Mapping[str, tuple[tuple[int, ...], str]]) -> list[str]:
    """Return the problems, one line each; empty where there are none. config: the contents of ``config.json``. tensors: shape and
    type by the names that they have in files.

    transformers joins, splits and renames tensors as it loads them. A parameter that is then missing would have random values.
    """
    empty = {name: torch.empty(shape, dtype=getattr(torch, dtype), device="meta") for name, (shape, dtype) in tensors.items()}
    kind = configuration_of(str(config["model_type"]).removeprefix(PREFIX))
    problem = "transformers cannot make a model of this config.json"
    options: dict[str, Any] = {"device_map": {"": "meta"}, "ignore_mismatched_sizes": True, "output_loading_info": True}
    with silent_transformers("critical"), translate_transformers_errors(problem, BuildError):
        host_config = kind.from_dict(decode_floats(config))
        try:
            try:
                _, report = class_of(host_config).from_pretrained(None, config=host_config, state_dict=empty, **options)
            except NotImplementedError:  # before 5.14 it compares the values of tied tensors that are both in files
                host_config.tie_word_embeddings = False
                _, report = class_of(host_config).from_pretrained(None, config=host_config, state_dict=empty, **options)
        except RuntimeError as error:
            joined = "tensors that transformers joins as it loads them, such as those of experts, are missing or of several shapes"
            return [f"{joined}, or a size of config.json cannot be: {shorten(str(error))}"]
    problems = [f"the model needs {name}, and no file has it" for name in sorted(report["missing_keys"])]
    problems += [f"the model has no place for {name}" for name in sorted(report["unexpected_keys"])]
    problems += [f"{name} has another shape than the model's: {shapes}" for name, *shapes in sorted(report["mismatched_keys"])]
    return problems + [str(message) for message in report["error_msgs"]]
