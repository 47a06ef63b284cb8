"""The trunk: all of a decoder that is not its heads. Every family's config is read into this one form.

The canonical names of tensors are Llama's where it has the thing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast, get_args

from converters.bounded import brief
from converters.errors import ConfigError

if TYPE_CHECKING:
    from converters.rotary import LengthRotation

Dtype = Literal["float32", "bfloat16", "float16", "float64"]
DTYPE_KEYS = ("dtype", "torch_dtype")
"""The key of a config for the type that the model computes in, and the older one, which most published models have."""
OF_CACHES = (
    "cache_implementation",
    "cache_config",
    "output_attentions",
    "prompt_lookup_num_tokens",
    "assistant_early_exit",
    "use_mtp",
)
"""Settings for generation that need a cache of keys and values. Greedy text is the same without them."""
TokenIds = int | list[int] | None
Activation = Literal["silu", "gelu", "relu"]
TrunkNorm = Literal["rms", "layer"]
MLP = Literal["gated", "plain"]
PositionEmbedding = Literal["none", "sinusoidal", "learned"]


def dtype_name(dtype: object) -> Dtype:
    """Return the word for one of PyTorch's types of floating-point numbers: ``float32`` for ``torch.float32``."""
    return cast("Dtype", str(dtype).removeprefix("torch."))


class RopeScaling(TypedDict):
    """Llama 3's scaling of rotary frequencies: wavelengths beyond ``original_max_position_embeddings / low_freq_factor`` are
    stretched by ``factor``, those below ``original_max_position_embeddings / high_freq_factor`` are unchanged, the rest is blended.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


def read_dtype(config: Mapping[str, object]) -> Dtype:
    """Return ``dtype``, or the older ``torch_dtype``. Without either float32; the source then has its tensors' dtype."""
    value = config.get("dtype") or config.get("torch_dtype") or "float32"
    for dtype in get_args(Dtype):
        if value in (dtype, f"torch.{dtype}"):
            return dtype
    raise ConfigError(f"config.json has dtype: {brief(value)}; expected one of {', '.join(get_args(Dtype))}.")


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The common sizes of every model around heads. ``layers``, ``heads`` and ``key_heads`` are counts, ``max_positions`` tokens.

    ``dtype`` is the default dtype of computation; a stored tensor may differ. ``labels`` is the number of classes of a classifier.
    """

    vocabulary_size: int
    hidden_size: int
    layers: int
    heads: int
    key_heads: int
    head_dim: int
    max_positions: int
    dtype: Dtype
    labels: int | None = None
    value_dim: int | None = None
    """Numbers of a value; None: as many as of a key, ``head_dim``."""
    cached: int | None = None
    """Numbers that the model caches of a token in each layer, where these are not all keys and values."""
    windows: tuple[int | None, ...] | None = None
    """For each layer, the number of tokens that a query sees, its own among them, None for all; None where all layers see all."""

    @property
    def learns_positions(self) -> bool:
        """Whether it has a vector for each position, and so none beyond ``max_positions``."""
        return False

    @property
    def decoder(self) -> str | None:
        """The name of the text decoder's module in the base model, for a model that reads images, too; None for other models."""
        return None

    @property
    def sees_ahead(self) -> bool:
        """Whether the tokens of an image see each other in both directions."""
        return False

    @property
    def length_rotations(self) -> Mapping[int, LengthRotation]:
        """The layers whose rotary frequencies depend on the length of the text so far."""
        return {}

    @property
    def without_attention(self) -> tuple[int, ...]:
        """The layers of a hybrid that have no softmax attention."""
        return ()

    def __post_init__(self) -> None:
        if self.heads % self.key_heads:
            raise ConfigError(
                f"{self.heads} query heads cannot share {self.key_heads} key/value heads evenly: "
                "num_attention_heads must be a multiple of num_key_value_heads."
            )
        if self.dtype not in get_args(Dtype):
            raise ConfigError(f"dtype is {self.dtype!r}; expected one of {', '.join(get_args(Dtype))}.")


@dataclass(frozen=True, kw_only=True)
class Trunk(Sizes):
    """All of a model of this project that is not its heads.

    ``attention_bias`` puts a bias on q, k, v and o alike and ``mlp_bias`` one on gate, up and down, as in Llama.
    Defaults are Llama's. In our own models, ``position_embedding`` is added to the tokens' embeddings (``learned``:
    ``max_positions`` of them), and ``dropout`` applies to all that is added to a hidden state.
    """

    intermediate_size: int
    norm_epsilon: float
    attention_bias: bool
    mlp_bias: bool
    tied_embeddings: bool
    rope_theta: float
    rope_scaling: RopeScaling | None
    activation: Activation
    bos_token_id: TokenIds
    eos_token_id: TokenIds
    pad_token_id: int | None
    initializer_range: float
    norm: TrunkNorm = "rms"
    mlp: MLP = "gated"
    position_embedding: PositionEmbedding = "none"
    dropout: float = 0.0

    @property
    def learns_positions(self) -> bool:
        return self.position_embedding == "learned"


DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(Trunk) if field.default is not MISSING}
"""The default of each field of ``Trunk`` that has one."""


EMBEDDING = "model.embed_tokens.weight"
POSITIONS = "model.embed_positions.weight"
OUTPUT = "lm_head.weight"
CLASSIFIER = "score.weight"
COMPOSED = "model.layers.{i}.self_attn.composed.{rest}"
"""Parameters of composed heads: ``{rest}`` is ``<head>.<part>.<tensor>``."""


def is_composed(name: str) -> bool:
    """Whether a canonical name is that of a composed head's own parameter."""
    return ".composed." in name


def list_expected_tensors(trunk: Trunk) -> dict[str, tuple[int, ...]]:
    """Return the canonical name and shape of every tensor that a trunk reads from its source. Matrices are ``[out, in]``."""
    hidden, middle = trunk.hidden_size, trunk.intermediate_size
    queries, keys = trunk.heads * trunk.head_dim, trunk.key_heads * trunk.head_dim
    attention = {"q_proj": (queries, hidden), "k_proj": (keys, hidden), "v_proj": (keys, hidden), "o_proj": (hidden, queries)}
    gate = {"gate_proj": (middle, hidden)} if trunk.mlp == "gated" else {}
    mlp = {**gate, "up_proj": (middle, hidden), "down_proj": (hidden, middle)}
    norm = ("weight", "bias") if trunk.norm == "layer" else ("weight",)

    tensors: dict[str, tuple[int, ...]] = {EMBEDDING: (trunk.vocabulary_size, hidden)}
    if trunk.position_embedding == "learned":
        tensors[POSITIONS] = (trunk.max_positions, hidden)
    for layer in (f"model.layers.{i}" for i in range(trunk.layers)):
        tensors |= {f"{layer}.input_layernorm.{name}": (hidden,) for name in norm}
        for name, shape in attention.items():
            tensors[f"{layer}.self_attn.{name}.weight"] = shape
            if trunk.attention_bias:
                tensors[f"{layer}.self_attn.{name}.bias"] = shape[:1]
        tensors |= {f"{layer}.post_attention_layernorm.{name}": (hidden,) for name in norm}
        for name, shape in mlp.items():
            tensors[f"{layer}.mlp.{name}.weight"] = shape
            if trunk.mlp_bias:
                tensors[f"{layer}.mlp.{name}.bias"] = shape[:1]
    tensors |= {f"model.norm.{name}": (hidden,) for name in norm}
    if trunk.labels is not None:
        tensors[CLASSIFIER] = (trunk.labels, hidden)
    elif not trunk.tied_embeddings:
        tensors[OUTPUT] = (trunk.vocabulary_size, hidden)
    return tensors
