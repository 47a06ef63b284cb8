"""The configuration of a composed model: its host's, with a resolved spec beside it.

Classes of hosts are made at first use, from one of this project's and one of a host's. Such a class is in no module by its name, so
a pickle stores how to make it again.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import transformers
from pydantic import ValidationError
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES, AutoConfig
from transformers.models.llama.configuration_llama import LlamaConfig

from composer.errors import BuildError
from composer.spec.external_parts import find_unregistered_kind, needed_part_message, read_recorded_parts
from composer.spec.resolve import Resolved
from composer.system.versions import version_of
from converters.model_types import OWN, PREFIX


class MadeClass(type):
    """The metaclass of these classes. made_by: a function of a module and its arguments, which returns the class."""

    made_by: tuple[Callable[..., type], tuple[Any, ...]]


def make_class(factory: Callable[..., type], host: Any, front: type, *behind: type, **attributes: Any) -> Any:
    """Return the class ``Composed…`` with the bases ``front`` and a host's class. factory: the function that returns it again for
    ``host``."""
    bases = (front, *behind)
    return MadeClass(
        f"Composed{behind[0].__name__}", bases, {"__module__": factory.__module__, "made_by": (factory, (host,)), **attributes}
    )


def _pickle(cls: MadeClass) -> str | tuple[Any, ...]:
    # A user's class that inherits from one of these is in its module by its name.
    return vars(cls).get("made_by", cls.__qualname__)


copyreg.pickle(MadeClass, _pickle)


class Composition:
    """The first base of a composed configuration class; the host's is the next one.

    spec: the resolved document, as ``composer.spec.resolve.Resolved`` writes it. spec_hash: its hash. adapter: the folder, inside
    the model's own, of adapters that belong to the weights.
    """

    spec: dict[str, Any] | None = None
    spec_hash: str | None = None
    adapter: str | None = None
    labels: int | None = None
    """A host of another family writes text."""

    def read_spec(self) -> Resolved:
        """Return the spec, validated. Raises ValueError if there is none, or if it does not have its hash."""
        if self.spec is None:
            raise ValueError("this configuration has no spec: a composed model is made by `compose build`")
        try:
            resolved = Resolved.model_validate(self.spec)
        except ValidationError as error:
            if (kind := find_unregistered_kind(error)) is None:
                raise
            folder = getattr(self, "name_or_path", "") or "This model"
            raise BuildError(f"{needed_part_message(folder, kind, read_recorded_parts(Path(folder)))}.") from error
        if self.spec_hash is not None and not resolved.has_hash(self.spec_hash):
            raise ValueError(f"the spec in this configuration has the hash {resolved.hash}, but its spec_hash is {self.spec_hash}")
        return resolved

    def of_decoder(self) -> Any:
        """Return the configuration of the text decoder with its heads: this one, unless the model also reads images."""
        text: Any = self.get_text_config()  # pyright: ignore[reportAttributeAccessIssue]
        if text is self:
            return self
        heads = {"spec": self.spec, "spec_hash": self.spec_hash}
        return configuration_of(text.model_type).from_dict({**text.to_dict(), **heads})


class ComposedConfig(Composition, LlamaConfig):
    """Llama's fields, and further fields of this project's trunks.

    norm_type, mlp_type, position_embedding, residual_dropout: as ``composer.spec.trunk.TrunkSpec`` has them; ``rms_norm_eps`` is
    the epsilon of either norm, and ``max_position_embeddings`` the number of positions that are learned. labels: the classes of
    a classifier; None for a language model.
    """

    model_type: ClassVar[str] = OWN  # pyright: ignore[reportIncompatibleVariableOverride]

    spec: dict[str, Any] | None = None
    spec_hash: str | None = None
    norm_type: Literal["rms", "layer"] = "rms"
    mlp_type: Literal["gated", "plain"] = "gated"
    position_embedding: Literal["none", "sinusoidal", "learned"] = "none"
    residual_dropout: float = 0.0
    labels: int | None = None
    adapter: str | None = None


def host_configuration(host: str) -> type[Any]:
    """Return transformers' configuration class of a model type. Other packages may register classes in its place: fla has a BitNet.

    Raises KeyError if there is none.
    """
    name = CONFIG_MAPPING_NAMES.get(host)
    return CONFIG_MAPPING[host] if name is None else getattr(transformers, name)


@cache
def configuration_of(host: str) -> type[Any]:
    """Return the configuration class of composed models whose host has this model type. Raises BuildError if transformers has
    none."""
    if host not in CONFIG_MAPPING:
        raise BuildError(f'transformers {version_of("transformers")} has no family "{host}", the model_type in config.json')
    plain = host_configuration(host)
    fields: dict[str, Any] = {"spec": dict[str, Any] | None, "spec_hash": str | None, "adapter": str | None}
    fields = {
        "__annotations__": {"model_type": ClassVar[str], **fields},
        "__doc__": Composition.__doc__,
        "model_type": PREFIX + host,
        **dict.fromkeys(fields),
    }
    configuration = make_class(configuration_of, host, Composition, plain, **fields)
    AutoConfig.register(PREFIX + host, configuration, exist_ok=True)
    return configuration
