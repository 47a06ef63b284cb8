"""The classes of composed models, by their hosts, and their places among transformers' Auto classes.

The classifier of whole texts is a composed model whose last hidden states are averaged over a text's tokens.
"""

from __future__ import annotations

import sys
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
