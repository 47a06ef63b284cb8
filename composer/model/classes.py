"""The classes of composed models, by their hosts, and their places among transformers' Auto classes."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any, TypeAlias, cast

from transformers.conversion_mapping import get_checkpoint_conversion_mapping, register_checkpoint_conversion_mapping
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

from composer.errors import BuildError
from composer.model import own_host
from composer.model.classification import ComposedForSequenceClassification
from composer.model.configuration import ComposedConfig, configuration_of, host_configuration
from composer.model.mixers import serve_cpu
from composer.model.modeling import ComposedForCausalLM, composed_causal, composed_model
from converters.hosts import WHOLE
from converters.hybrid_layers import HYBRIDS
from converters.model_types import OWN, PREFIX

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
