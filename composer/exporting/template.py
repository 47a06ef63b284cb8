"""The part of a file that is the same for all heads: configuration, attention, cache and models around them."""

from __future__ import annotations

from string import Template

HEADER = Template('''"""$title

The model is transformers' $host_causal. Its projections, MLPs and norms are used as they are. In place of its softmax, the
attention of each layer calls a head of this file. The file needs torch and transformers, and no other file.

Written by `compose export`. Shapes: B rows, T tokens of the call, H query heads, K key heads, D numbers in a head, C hidden size,
F features, E entries (earlier ones and those of the call), N heads of a state, V numbers in a value.
"""

from __future__ import annotations

$imports


State = dict[str, Tensor]
"""The tensors that a layer hands on from call to call, by name, batch first."""
Rotation = tuple[Tensor, Tensor] | None
"""Cosine and sine of the model at the tokens of a call."""


class ${Name}Config($host_config):
    """The configuration of $host_causal, and for each layer the classes of its heads by their names."""

    model_type = "$model_type"
    heads: list[dict[str, str]] | None = None


class Tokens(NamedTuple):
    """The tokens of a call. Each row's real tokens stand first, and padding behind them.

    position: the place of each token among the real tokens of its row. valid: which are real. one: whether each row has exactly one
    token, a real one.
    """

    position: Tensor  # B T
    valid: Tensor     # B T
    one: bool


class Parameters(nn.Module):
    """Parameters by name and shape."""

    def __init__(self, **shapes: tuple[int, ...]) -> None:
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape)))
''')

MODEL = Template('''

HEADS = {$head_classes}


class ${Name}Attention($host_attention):
    """$host_attention with composed heads in place of its softmax. `attend` runs them."""

    def __init__(self, config: ${Name}Config, layer_idx: int) -> None:
        super().__init__($attention_arguments)
        self.composed = nn.ModuleDict({name: HEADS[head](config) for name, head in config.heads[layer_idx].items()})
$mixing_hooks
    def forward(self, hidden_states: Tensor, *arguments: Any, tokens: Tokens, past_key_values: Any = None, **options: Any) -> Any:
        """The forward of $host_attention. Heads rotate queries and keys themselves, so the host rotates by an angle of 0."""
        rotation = options.pop("position_embeddings", None)
        if rotation is not None:
            options["position_embeddings"] = torch.ones_like(rotation[0]), torch.zeros_like(rotation[1])
        options["attention_mask"] = None
        layer = None if past_key_values is None else past_key_values.layers[self.layer_idx]
        state = {} if layer is None else layer.tensors
        if not state:
            for name, head in self.composed.items():
                empty = head.empty_state(hidden_states.shape[0], hidden_states.dtype, hidden_states.device)
                state = state | {f"{name}.{slot}": tensor for slot, tensor in empty.items()}
$mixing        call = Call(hidden_states, rotation, tokens, state, $mixed)
        answer = super().forward(hidden_states, *arguments, call=call, **options)
        if layer is not None:
            layer.keep(call.new_state, hidden_states.shape[1])
        return answer


class Call(NamedTuple):
    """What `attend` takes beside queries, keys and values. state: by head and name; new_state: the state after the call, which
    `attend` fills in."""

    hidden: Tensor
    rotation: Rotation
    tokens: Tokens
    state: State
    new_state: State


def attend(
    module: ${Name}Attention,
    query: Tensor,  # B H T D
    key: Tensor,    # B K T D
    value: Tensor,  # B K T D
    attention_mask: None = None,
    scaling: float | None = None,
    *,
    call: Call,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """transformers' interface of attention functions. Returns B T H D."""
    query, key, value = (states.transpose(1, 2) for states in (query, key, value))
    if scaling is not None and abs(scaling * query.shape[-1] ** 0.5 - 1) > 1e-9:
        query = query * (scaling * query.shape[-1] ** 0.5)  # heads divide their logits by the root of D
    outputs, position, valid, first = [], call.tokens.position, call.tokens.valid, 0
    for name, head in module.composed.items():
        keys = slice(first, first + head.key_heads)
        queries = slice(first * head.heads // head.key_heads, (first + head.key_heads) * head.heads // head.key_heads)
        inputs = call.hidden, query[:, :, queries], key[:, :, keys], value[:, :, keys]$sinks
        state = {slot: call.state[f"{name}.{slot}"] for slot in head.slots}
        if call.tokens.one:
            output, state = head.step(*inputs, position, state, call.rotation)
        else:
            output, state = head(*inputs, position, valid, state, call.rotation)
        outputs.append(output)
        call.new_state.update({f"{name}.{slot}": tensor for slot, tensor in state.items()})
        first += head.key_heads
    return torch.cat(outputs, dim=2).contiguous(), None


AttentionInterface.register("$model_type", attend)
AttentionMaskInterface.register("$model_type", lambda *_, **__: None)


class LayerState(CacheLayerMixin):
    """The state of one layer: tensors by name, batch first. columns: the tokens that it has seen, padding included."""

    is_sliding = False

    def __init__(self) -> None:
        super().__init__()
        self.tensors: State = {}
        self.columns = 0

    def keep(self, tensors: State, columns: int) -> None:
        self.tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
        self.columns += columns

    def get_seq_length(self) -> int:
        return self.columns

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.columns + query_length, 0

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length

    def reset(self) -> None:
        self.tensors, self.columns = {}, 0

    def batch_select_indices(self, indices: Tensor) -> None:
        self.tensors = {name: tensor[indices.to(tensor.device)] for name, tensor in self.tensors.items()}

    reorder_cache = batch_select_indices

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.tensors = {name: tensor.repeat_interleave(repeats, dim=0) for name, tensor in self.tensors.items()}

    def lazy_initialization(self, *_: Any) -> None:
        raise NotImplementedError("a state is written by its layer, and cannot be shortened or moved")

    update = crop = offload = prefetch = lazy_initialization


class ${Name}Cache(Cache):
    """One state a layer. seen: the real tokens of each row so far."""

    def __init__(self, config: ${Name}Config) -> None:
        super().__init__(layers=[LayerState() for _ in range(config.num_hidden_layers)])

    @property
    def seen(self) -> Tensor | None:
        return self.layers[0].tensors.get("seen")


class ${Name}PreTrainedModel:
    """What both models below set in the classes of transformers."""

    config_class = ${Name}Config
    _is_stateful = True
    _supports_flash_attn = _supports_flex_attn = _can_compile_fullgraph = False
    _keep_in_fp32_modules_strict = $precise

    def get_correct_attn_implementation(self, *_: Any, **__: Any) -> str:
        return "$model_type"

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, Parameters):
            for parameter in module.parameters():
                if not getattr(parameter, "_is_hf_initialized", False):
                    parameter.normal_(std=self.config.initializer_range)


class ${Name}Model(${Name}PreTrainedModel, $host_model):
    """$host_model on these layers. Inside of it, each row's real tokens stand first, and padding behind them."""

    def __init__(self, config: ${Name}Config) -> None:
        super().__init__(config)
        for index, layer in enumerate(self.$layers):
            layer.$attention = ${Name}Attention(config, index)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,       # B T
        attention_mask: Tensor | None = None,  # B S; 1 for real tokens; the last T columns are this call's
        position_ids: Tensor | None = None,    # B T
        past_key_values: ${Name}Cache | None = None,
        inputs_embeds: Tensor | None = None,   # B T C
        use_cache: bool | None = None,
        **options: Any,
    ) -> Any:
        """Positions are counted from the attention mask. position_ids may only count on: several documents in a row are refused."""
        inputs = input_ids if inputs_embeds is None else inputs_embeds
        (batch, length), device = inputs.shape[:2], inputs.device
        use_cache = self.config.use_cache if use_cache is None else use_cache
        if past_key_values is None and use_cache and not (self.gradient_checkpointing and self.training):
            past_key_values = ${Name}Cache(self.config)
        if past_key_values is not None and not isinstance(past_key_values, ${Name}Cache):
            raise TypeError(f"past_key_values is a {type(past_key_values).__name__}; this model needs a ${Name}Cache")
        valid = torch.ones(batch, length, dtype=torch.bool, device=device)
        if attention_mask is not None:
            if attention_mask.dim() != 2:
                raise ValueError("attention_mask: expected the shape B S, with 1 for a real token and 0 for padding")
            valid = attention_mask[:, -length:].bool()
        if position_ids is not None and length > 1:
            falls = position_ids[:, 1:] <= position_ids[:, :-1]
            if bool((falls & valid[:, 1:] & valid[:, :-1]).any()):
                raise ValueError("position_ids start again within a row; this file reads one document in each row")
        order = (~valid).to(torch.uint8).argsort(dim=1, stable=True)
        input_ids, inputs_embeds, valid = (reordered(states, order) for states in (input_ids, inputs_embeds, valid))
        seen = None if past_key_values is None else past_key_values.seen
        seen = torch.zeros(batch, dtype=torch.int64, device=device) if seen is None else seen
        position = seen[:, None] + torch.arange(length, device=device)
        outputs = super().forward(
            input_ids=input_ids,
            inputs_embeds=inputs_embeds,
            position_ids=position,
            past_key_values=past_key_values,
            use_cache=past_key_values is not None,
            tokens=Tokens(position, valid, length == 1 and bool(valid.all())),
            **options,
        )
        if past_key_values is not None:
            past_key_values.layers[0].tensors["seen"] = seen + valid.sum(1)
        back = order.argsort(dim=1)
        outputs.last_hidden_state = reordered(outputs.last_hidden_state, back)
        if outputs.hidden_states is not None:
            outputs.hidden_states = tuple(reordered(states, back) for states in outputs.hidden_states)
        return outputs


def reordered(states: Tensor | None, order: Tensor) -> Tensor | None:
    """B T ..., the tokens of each row in another order."""
    if states is None or states.shape[1] == 1:
        return states
    return states.gather(1, order.view(*order.shape, *[1] * (states.dim() - 2)).expand_as(states))


class ${Name}ForCausalLM(${Name}PreTrainedModel, $host_causal):
    """$host_causal on these layers."""

    def __init__(self, config: ${Name}Config) -> None:
        super().__init__(config)
        self.$base = ${Name}Model(config)
        self.post_init()

    def _prepare_cache_for_generation(self, generation_config: Any, model_kwargs: dict[str, Any], *_: Any, **__: Any) -> bool:
        if model_kwargs.get("past_key_values") is None and generation_config.use_cache:
            model_kwargs["past_key_values"] = ${Name}Cache(self.config)
        return False


${Name}Config.register_for_auto_class()
${Name}Model.register_for_auto_class("AutoModel")
${Name}ForCausalLM.register_for_auto_class("AutoModelForCausalLM")
$conversion''')

MIXING_HOOKS = """        for projection in (self.q_proj, self.k_proj):
            projection.register_forward_pre_hook(lambda _, inputs: inputs if self.mixed is None else (self.mixed,))
"""
MIXING = """        ((name, head),) = self.composed.items()
        self.mixed, mixed = None, {}
        if hasattr(head, "mix"):
            own = {slot: state[f"{name}.{slot}"] for slot in head.slots}
            if tokens.one:
                self.mixed, own = head.mix_step(hidden_states, tokens.position, own)
            else:
                self.mixed, own = head.mix(hidden_states, tokens.position, tokens.valid, own)
            mixed = {f"{name}.{slot}": tensor for slot, tensor in own.items()}
"""
ONE_BY_ONE = """        outputs = []
        for index in range(query.shape[1]):
            now = slice(index, index + 1)
            turn = None if rotation is None else (rotation[0][:, now], rotation[1][:, now])
            inputs = hidden[:, now], query[:, now], key[:, now], value[:, now]
            output, new = self.step(*inputs, position[:, now], state, turn)
            outputs.append(output)
            # A row whose token is padding keeps its state.
            state = {
                name: torch.where(valid[:, index].view(-1, *[1] * (tensor.dim() - 1)), tensor, state[name])
                for name, tensor in new.items()
            }
        return torch.cat(outputs, dim=1), state
"""

CONVERSION = Template("""
# transformers stores some weights of this model otherwise than it holds them.
for theirs, own in (("$host_type", "$model_type"), ("$host_model", "${Name}Model"), ("$host_causal", "${Name}ForCausalLM")):
    if (conversion := get_checkpoint_conversion_mapping(theirs)) is not None:
        register_checkpoint_conversion_mapping(own, conversion, overwrite=True)
""")
