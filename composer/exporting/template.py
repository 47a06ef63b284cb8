"""The part of a file that is the same for all heads: configuration, attention, cache and models around them."""

from __future__ import annotations

from string import Template

HEADER = Template('''# SPDX-License-Identifier: Apache-2.0
"""$title

The model is transformers' $host_causal. Its projections, MLPs and norms are used as they are. In place of its softmax, the
attention of each layer calls a head of this file. The file needs torch and transformers, and no other file.

Written by `compose export`. Shapes: B rows, T tokens of the call, H query heads, K key heads, D numbers in a head, C hidden size,
F features, E entries (earlier ones and those of the call), N heads of a state, V numbers in a value.
"""

from __future__ import annotations

$imports

State = dict[str, Tensor]  # what a layer hands on from call to call, by name, batch first
Rotation = tuple[Tensor, Tensor] | None  # cosine and sine of the model at the tokens of a call
# The name of the cache in outputs and in `generate`: transformers 5.24 renamed it.
CACHE = "cache" if "cache" in BaseModelOutputWithPast.__annotations__ else "past_key_values"
$fla

class ${Name}Config($host_config):
    """The configuration of $host_causal$configured."""

    model_type = "$model_type"
$heads_field
''')

FLA = Template('''
$none  # of flash-linear-attention 0.6, where it is installed
if torch.cuda.is_available():
    try:
$imports    except ImportError:
        pass


def runs_fla(dtype: torch.dtype, device: torch.device) -> bool:
    """True if operations of flash-linear-attention run. In float32 they would round to 10 bits, and PyTorch computes."""
    return device.type == "cuda" and dtype == torch.bfloat16

''')

MODEL = Template('''$parameters$table

class ${Name}Attention($host_attention):
    """$host_attention with $what in place of its softmax: `attend` runs $pronoun."""

    def add_heads(self, config: ${Name}Config, layer_idx: int) -> None:
        """Called once, on the attention that the host has built. Its projections remain as they are."""
        self.layer_idx = layer_idx
        self.config = copy(self.config)  # of this layer alone: settings of the model never replace `attend`
        self.config._attn_implementation = "$model_type"
        self.composed = nn.ModuleDict($heads)
$key_heads$mixing_hooks
$forward
def attend(
    module: ${Name}Attention,
    query: Tensor,  # B H T D
    key: Tensor,    # B K T D
    value: Tensor,  # B K T D
    attention_mask: None = None,
    scaling: float | None = None,
    *,
    hidden: Tensor,  # B T C
    position: Tensor,  # B T; of each token among the real tokens of its row
    valid: Tensor | None,  # B T; True for real tokens, which stand before padding; None for a step
    rotation: Rotation,
    layer: LayerState,
$sinks_argument    **_: Any,
) -> tuple[Tensor, None]:
    """An attention function, as transformers calls it: writes the layer's new state, and returns B T H D."""
    query, key, value = (states.transpose(1, 2) for states in (query, key, value))
$scaled$attend

AttentionInterface.register("$model_type", attend)


def owned(tensor: Tensor) -> Tensor:
    """The tensor, or a copy: a view of a much larger tensor would keep all of that in memory."""
    return tensor.clone() if tensor.untyped_storage().nbytes() > 2 * tensor.nbytes else tensor


class LayerState(CacheLayerMixin):
    """The state of one layer: tensors by name, batch first. columns: the tokens that it has seen, padding included."""

    is_sliding = False

    def __init__(self) -> None:
        super().__init__()
        self.tensors, self.columns = {}, 0

    def keep(self, tensors: State, columns: int) -> None:
        self.tensors = {name: owned(tensor) for name, tensor in tensors.items()}
        self.columns += columns

    def get_seq_length(self) -> int:
        return self.columns

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.columns + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def batch_select_indices(self, indices: Tensor) -> None:
        self.tensors = {name: tensor[indices.to(tensor.device)] for name, tensor in self.tensors.items()}

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.tensors = {name: tensor.repeat_interleave(repeats, dim=0) for name, tensor in self.tensors.items()}

    def update(self, *_: Any) -> None:
        raise NotImplementedError("a state cannot be moved or forget tokens: draft with the model before its export")

    reset = __init__
    get_max_cache_shape = get_max_length
    reorder_cache = batch_select_indices
    lazy_initialization = crop = offload = prefetch = update


class ${Name}Cache(Cache):
    """One state a layer. The first one has `seen`, too: the real tokens of each row so far."""

    def __init__(self, config: ${Name}Config) -> None:
        super().__init__(layers=[LayerState() for _ in range(config.num_hidden_layers)])
        self.mode: bool | None = None  # of the last call: torch's inference mode, or None, when gradients may need the states

    def is_step(self, length: int) -> bool:
        """True if a call of this length, without padding, may compute one token and write over the states."""
        return length == 1 and not torch.is_grad_enabled() and self.mode is torch.is_inference_mode_enabled()


def check_cache(cache: Any) -> None:
    if not isinstance(cache, ${Name}Cache | None):
        raise TypeError(f"{CACHE} is a {type(cache).__name__}; this model needs a ${Name}Cache")


class ${Name}PreTrainedModel:
    """What both models below set in the classes of transformers."""

    config_class = ${Name}Config
    _is_stateful = True
    _supports_flash_attn = _supports_flex_attn = _can_compile_fullgraph = False
    _keep_in_fp32_modules_strict = $precise

    def get_correct_attn_implementation(self, *_: Any, **__: Any) -> str:
        return "$model_type"
$initialisation

class ${Name}Model(${Name}PreTrainedModel, $host_model):
    """$host_model on these layers. Inside of it, each row's real tokens stand first, and padding behind them."""

    def __init__(self, config: ${Name}Config) -> None:
        super().__init__(config)
        for index, layer in enumerate(self.$layers):
            layer.$attention.__class__ = ${Name}Attention  # the host has built it, with the arguments of its own constructor
            layer.$attention.add_heads(config, index)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,       # B T
        attention_mask: Tensor | None = None,  # B S; 1 for real tokens; the last T columns are this call's
        position_ids: Tensor | None = None,    # B T
        cache: ${Name}Cache | None = None,
        inputs_embeds: Tensor | None = None,   # B T C
        use_cache: bool | None = None,
        past_key_values: ${Name}Cache | None = None,  # the name of `cache` before transformers 5.24
        **options: Any,
    ) -> Any:
        """Positions are counted from the attention mask. position_ids may only count on: several documents in a row are refused."""
        if options.pop("output_attentions", self.config.output_attentions):
            raise ValueError("output_attentions: the heads of this file return no weights; leave it out, or use the composed model")
        inputs = input_ids if inputs_embeds is None else inputs_embeds
        (batch, length), device = inputs.shape[:2], inputs.device
        cache = past_key_values if cache is None else cache
        use_cache = self.config.use_cache if use_cache is None else use_cache
        if self.gradient_checkpointing and self.training:
            cache = None  # layers run twice, and would write their states twice
        elif cache is None and use_cache:
            cache = ${Name}Cache(self.config)
        check_cache(cache)
        if attention_mask is not None and attention_mask.dim() != 2:
            raise ValueError("attention_mask: expected the shape B S, with 1 for a real token and 0 for padding")
        valid = (inputs.new_ones(batch, length) if attention_mask is None else attention_mask[:, -length:]).bool()
        if position_ids is not None and length > 1:
            falls = position_ids[:, 1:] <= position_ids[:, :-1]
            if bool((falls & valid[:, 1:] & valid[:, :-1]).any()):
                raise ValueError("position_ids start again within a row; this file reads one document in each row")
        order, is_step = None, cache is not None and cache.is_step(length) and (attention_mask is None or bool(valid.all()))
        if attention_mask is not None and length > 1:
            order = (~valid).to(torch.uint8).argsort(dim=1, stable=True)
            input_ids, inputs_embeds, valid = (reordered(states, order) for states in (input_ids, inputs_embeds, valid))
        seen = torch.zeros(batch, dtype=torch.int64, device=device)
        if cache is not None:
            seen = cache.layers[0].tensors.get("seen", seen)
            if cache.get_seq_length() and "seen" not in cache.layers[0].tensors:
                raise ValueError(f"{CACHE}: a call with it was interrupted. Begin with a new one")
        position = seen[:, None] + torch.arange(length, device=device)
        mask = position[:, None] if is_step else torch.stack((position, valid.to(position.dtype)), dim=1)
        outputs = super().forward(
            input_ids=input_ids,
            inputs_embeds=inputs_embeds,
            position_ids=position,
            attention_mask=mask[:, :, None],  # 4 axes: layers get it as it is
            use_cache=False,  # the host keeps no keys and values: layers keep their states
            **{CACHE: cache},
            **options,
        )
        if cache is not None:
            cache.layers[0].tensors["seen"] = seen + valid.sum(1)
            cache.mode = None if torch.is_grad_enabled() else torch.is_inference_mode_enabled()
            outputs[CACHE] = cache
        if order is not None:
            back = order.argsort(dim=1)
            outputs.last_hidden_state = reordered(outputs.last_hidden_state, back)
            if outputs.hidden_states is not None:
                outputs.hidden_states = tuple(reordered(states, back) for states in outputs.hidden_states)
        return outputs


def reordered(states: Tensor | None, order: Tensor) -> Tensor | None:
    """B T ..., the tokens of each row in another order."""
    if states is None:
        return None
    return states.gather(1, order.view(*order.shape, *[1] * (states.dim() - 2)).expand_as(states))


class ${Name}ForCausalLM(${Name}PreTrainedModel, $host_causal):
    """$host_causal on these layers."""

    def __init__(self, config: ${Name}Config) -> None:
        super().__init__(config)
        self.$base = ${Name}Model(config)
        self.post_init()

    def _prepare_cache_for_generation(self, generation_config: Any, model_kwargs: dict[str, Any], *_: Any, **__: Any) -> bool:
        if (name := generation_config.cache_implementation) is not None:
            raise ValueError(f"cache_implementation={name!r}: this model has a ${Name}Cache; remove this argument")
        check_cache(model_kwargs.get(CACHE))
        if model_kwargs.get(CACHE) is None and generation_config.use_cache:
            model_kwargs[CACHE] = ${Name}Cache(self.config)
        return False


${Name}Config.register_for_auto_class()
${Name}Model.register_for_auto_class("AutoModel")
${Name}ForCausalLM.register_for_auto_class("AutoModelForCausalLM")
$conversion''')

FORWARD = Template('''\
    def forward(self, hidden_states: Tensor, *arguments: Any, attention_mask: Tensor, **options: Any) -> Any:
        """The forward of $host_attention. Heads rotate queries and keys themselves, so the host rotates by an angle of 0.

        attention_mask: B 2 1 T, each token's position among the real tokens of its row, and 1 for real tokens; B 1 1 T for a step.
        """
        position = attention_mask[:, 0, 0]
        valid = attention_mask[:, 1, 0].bool() if attention_mask.shape[1] == 2 else None
        cache = next((option for option in options.values() if isinstance(option, ${Name}Cache)), None)
        options = {name: None if option is cache else option for name, option in options.items()}
        rotation = options.pop("position_embeddings", None)
        if rotation is not None:
            options["position_embeddings"] = torch.ones_like(rotation[0]), torch.zeros_like(rotation[1])
        layer = LayerState() if cache is None else cache.layers[self.layer_idx]
        options |= {"hidden": hidden_states, "position": position, "valid": valid, "rotation": rotation, "layer": layer}
        options["attention_mask"] = None
$mixing        answer = super().forward(hidden_states, *arguments, **options)
$mixed        return answer
''')
"""Of a layer of any host."""
LLAMA_FORWARD = Template('''\
    def forward(self, hidden_states: Tensor, *_: Any, attention_mask: Tensor, **options: Any) -> Any:
        """The forward of $host_attention, without its rotation: heads rotate queries and keys themselves.

        attention_mask: B 2 1 T, each token's position among the real tokens of its row, and 1 for real tokens; B 1 1 T for a step.
        """
        position = attention_mask[:, 0, 0]
        valid = attention_mask[:, 1, 0].bool() if attention_mask.shape[1] == 2 else None
        cache, rotation = options.get(CACHE), options.get("position_embeddings")
        layer = LayerState() if cache is None else cache.layers[self.layer_idx]
$mixing        shape = *hidden_states.shape[:2], -1, self.head_dim
        projections = self.q_proj, self.k_proj, self.v_proj
        states = (projection(hidden_states).view(shape).transpose(1, 2) for projection in projections)
        call = {"hidden": hidden_states, "position": position, "valid": valid, "rotation": rotation, "layer": layer}
        answer = self.o_proj(attend(self, *states, **call)[0].flatten(2)), None
$mixed        return answer
''')
"""Of a layer of Llama, whose attention has no further steps."""
TABLE = Template("""

HEADS = {$head_classes}
""")
ONE_HEAD = """    (head,) = module.composed.values()
    inputs = hidden, query, key, value$sinks
    state = layer.tensors or head.empty_state(hidden.shape[0], query.dtype, query.device)
$run    layer.keep(state, query.shape[1])
    return output.contiguous(), None
"""
SEVERAL_HEADS = """    outputs, carried, first = [], {}, 0
    for name, head in module.composed.items():
        keys = slice(first, first + head.key_heads)
        queries = slice(first * head.heads // head.key_heads, (first + head.key_heads) * head.heads // head.key_heads)
        inputs = hidden, query[:, :, queries], key[:, :, keys], value[:, :, keys]$sinks
        empty = head.empty_state(hidden.shape[0], query.dtype, query.device)
        state = {slot: layer.tensors.get(f"{name}.{slot}", tensor) for slot, tensor in empty.items()}
$run        outputs.append(output)
        carried.update({f"{name}.{slot}": tensor for slot, tensor in state.items()})
        first += head.key_heads
    layer.keep(carried, query.shape[1])
    return torch.cat(outputs, dim=2).contiguous(), None
"""
HEADS_BY_NUMBER = """    outputs, carried, per_key = {}, {}, query.shape[2] // key.shape[2]
    for name, head in module.composed.items():
        keys = module.key_heads[name]
        queries = [per_key * number + index for number in keys for index in range(per_key)]
        inputs = hidden, query[:, :, queries], key[:, :, keys], value[:, :, keys]$sinks
        empty = head.empty_state(hidden.shape[0], query.dtype, query.device)
        state = {slot: layer.tensors.get(f"{name}.{slot}", tensor) for slot, tensor in empty.items()}
$run        outputs.update(zip(queries, output.unbind(2)))
        carried.update({f"{name}.{slot}": tensor for slot, tensor in state.items()})
    layer.keep(carried, query.shape[1])
    return torch.stack([output for _, output in sorted(outputs.items())], dim=2), None
"""
KEY_HEADS = """        self.key_heads = config.key_heads[layer_idx]
"""
ROTATED = '''

def rotated(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:  # B T H D
    """Queries or keys, rotated as the model does it: coordinate d with d + D / 2."""
    first, second = states.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return (states * cosine[:, :, None]).add_(turned.mul_(sine[:, :, None]))
'''
RUN = """    if valid is None:
        output, state = head.step(*inputs, position, state, rotation)
    else:
        output, state = head(*inputs, position, valid, state, rotation)
"""
SCALED = """    query = query * (scaling * query.shape[-1] ** 0.5)  # heads divide their logits by the root of D
"""
MIXING = """        (head,) = self.composed.values()
        self.mixed, carried = None, {}
        if hasattr(head, "mix"):
            state = layer.tensors or head.empty_state(hidden_states.shape[0], hidden_states.dtype, hidden_states.device)
            if valid is None:
                self.mixed, carried = head.mix_step(hidden_states, position, state)
            else:
                self.mixed, carried = head.mix(hidden_states, position, valid, state)
"""
MIXED = """        layer.tensors.update({name: owned(tensor) for name, tensor in carried.items()})
"""
ONE_BY_ONE = Template("""        outputs = []
        for index in range(query.shape[1]):
            now = slice(index, index + 1)
            turn = None if rotation is None else (rotation[0][:, now], rotation[1][:, now])
            inputs = hidden[:, now], query[:, now], key[:, now], value[:, now]$sinks
            output, new = self.step(*inputs, position[:, now], state, turn)
            outputs.append(output)
            # A row whose token is padding keeps its state.
            state = {
                name: torch.where(valid[:, index].view(-1, *[1] * (tensor.dim() - 1)), tensor, state[name])
                for name, tensor in new.items()
            }
        return torch.cat(outputs, dim=1), state
""")
IN_PIECES = Template("""        outputs, first = [], position[:, :1]
        missing = -query.shape[1] % $piece
        inputs = [
            torch.cat((states, states.new_zeros(states.shape[0], missing, *states.shape[2:])), dim=1).split($piece, dim=1)
            for states in (hidden, query, key, value, valid, *(rotation or ()))
        ]
        for hidden_piece, query_piece, key_piece, value_piece, valid_piece, *turn in zip(*inputs):
            # Of a row whose tokens have ended, the next position stays the same.
            place = first + torch.arange($piece, device=query.device)
            pieces = hidden_piece, query_piece, key_piece, value_piece$sinks
            output, state = self.piece(*pieces, place, valid_piece, state, tuple(turn) or None)
            first = first + valid_piece.sum(1, keepdim=True)
            outputs.append(output)
        return torch.cat(outputs, dim=1)[:, : query.shape[1]], state
""")

CONVERSION = Template("""
# transformers stores some weights of this model otherwise than it holds them.
for theirs, own in (("$host_type", "$model_type"), ("$host_model", "${Name}Model"), ("$host_causal", "${Name}ForCausalLM")):
    if (conversion := get_checkpoint_conversion_mapping(theirs)) is not None:
        register_checkpoint_conversion_mapping(own, conversion, overwrite=True)
""")
