"""Softmax attention over all pairs, with a cache that grows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from blocks.flow import Pairs, Partial, Tokens
from blocks.gates import GateConfig
from blocks.gates.base import Gate
from blocks.gates.none import NoGate
from blocks.kernels import Refused
from blocks.legend import Bool, Float, Int, Shape, Tensor, torch
from blocks.memories.base import Memory
from blocks.operation import EVERY, FLA, REFERENCE, TORCH, Call, Form, Kind, Port, Setting, Slot, State, row_obstacle, size_obstacle
from blocks.part import Parameters
from blocks.softmax import dense, fla_forms, native_step, native_step_obstacle, single
from blocks.tensors import accumulating, all_present, as_bool


@dataclass(frozen=True)
class Fading:
    """The running sums of log decays in a call.

    A pair's logit at t changes by Σ log α_u, s < u ≤ t. The state has the sum from each pair to the last token, so the sums of
    recent pairs are small and precise, however long the text is. Within a call they are differences of one running sum in float64.

    totals: at the call's tokens. since: for each stored or new entry. The change of a logit is the difference of the two.
    """

    totals: Float[Tensor, "B T H"]
    since: Float[Tensor, "B S H"]
    dtype: torch.dtype

    def decay_to_end(self) -> Float[Tensor, "B S H"]:
        """Return the sum of log decays from each entry to the last token."""
        return (self.totals[:, -1:] - self.since).to(self.dtype)


class Full(Memory):
    """Softmax over every pair of the document. Nothing is evicted, and the state grows by one pair per token.

    With a ``gate``, each pair's logit decreases at every later token by the gate's -log α: the Forgetting Transformer, and,
    with ``slopes``, ALiBi.
    """

    equation: ClassVar[str] = "o_t = Σ_s softmax_s(ℓ_t q_t·k_s / √D + Σ_{s<u≤t} log α_u) v_s, s ≤ t; ℓ_t = 1, or log(t + a) / log a"
    source: ClassVar[str] = (
        "Vaswani et al. 2017, arXiv:1706.03762, eq. 1; gate: Lin et al. 2025, arXiv:2503.02130; "
        "length_scale: Chen et al. 2026, arXiv:2601.22156 (HypeNet), as in its code"
    )
    incidental: ClassVar[frozenset[str]] = Memory.incidental | {"gate"}
    decay_ranks: ClassVar[frozenset[str]] = frozenset({"none", "head"})
    exact: ClassVar[bool] = True
    grows: ClassVar[bool] = True
    kind: Literal["full"] = "full"
    gate: GateConfig = NoGate()
    """The decay of pairs: log α per head, added to the logits of older pairs."""
    length_scale: Annotated[float, Field(gt=1)] | None = None
    """Multiplies logits by log(t + a) / log(a), with t the token's position in its document. Default: logits do not depend on
    the length."""

    @property
    def gates(self) -> Gate:
        return self.gate

    @property
    def fades(self) -> bool:
        """Whether pairs lose weight with age."""
        return self.gate.rank_of_decay != "none"

    @property
    def is_softmax_over_all(self) -> bool:
        return not self.fades and self.length_scale is None

    @property
    def sees_ahead(self) -> bool:
        return self.is_softmax_over_all

    def inputs(self, shape: Shape) -> tuple[Port, ...]:
        return (*super().inputs(shape), Port("decay", Kind.DECAY, shape.heads, 1, needed=False))

    def state(self, shape: Shape) -> dict[str, Slot]:
        """Return the state before the first token."""
        return self.state_after(shape, 0)

    def state_after(self, shape: Shape, tokens: int) -> dict[str, Slot]:
        """Return the state after this many tokens. Keys are stored rotated."""
        pair = (tokens, shape.key_heads)
        slots = {"key": Slot((*pair, shape.head_dim), "pairs"), "value": Slot((*pair, shape.value_dim), "pairs")}
        slots["position"] = Slot((tokens,), "int64", -1, order="first")
        return slots | ({"faded": Slot((tokens, shape.heads), "state", maximum=0.0)} if self.fades else {})

    def pairs_held(self, shape: Shape, tokens: int) -> float:
        return tokens

    def within(self, window: int) -> str | None:
        if self.fades or self.length_scale is not None:
            return None
        return f"{{kind: window, size: {window}, evict: drop}}"

    def forms(self, shape: Shape) -> tuple[Form, ...]:
        masked = partial(self.compute_output, attention=self.attend_masked)
        step_run = partial(self.compute_step, attention=single)
        kernel, obstacle = (fla_forms.FORGETTING, _kernel_obstacle) if self.fades else (fla_forms.ATTENTION, packed_obstacle)
        forms = (
            Form(REFERENCE, "all pairs, masked", masked),
            Form(
                FLA,
                kernel.name,
                partial(self.compute_output, attention=self.attend_by_kernel),
                obstacle,
                missing=kernel.missing,
                refuses=True,
            ),
        )
        blocks = Form(TORCH, "blocks of 512 queries", masked)
        if self.fades:
            return (*forms, Form(TORCH, "one query against all pairs", step_run, row_obstacle, decode=True), blocks)
        step = partial(self.compute_step, attention=native_step)
        return (
            *forms,
            Form(TORCH, "one query against all pairs, by PyTorch's kernel", step, native_step_obstacle, decode=True),
            Form(
                TORCH, "scaled_dot_product_attention", partial(self.compute_output, attention=self.attend_natively),
                native_obstacle, picks="FlashAttention's kernel or cuDNN's",
            ),
            blocks,
        )  # fmt: skip

    def forms_both_ways(self, shape: Shape) -> tuple[Form, ...]:
        return (Form(EVERY, "blocks of 512 queries", self.compute_both_ways),)

    def flops(self, shape: Shape, tokens: int) -> int:
        return min(tokens + 1, shape.window or tokens + 1) * shape.heads * (2 * (shape.head_dim + shape.value_dim) + self.fades)

    def prefill_flops(self, shape: Shape, tokens: int) -> int:
        """Return the mean over the tokens. A token sees all earlier tokens, or the last ones if the model has a window;
        bidirectional tokens see all."""
        if shape.both_ways:
            return 2 * tokens * shape.heads * (shape.head_dim + shape.value_dim)
        seen = count_seen_pairs(shape, tokens)
        return seen * shape.heads * (2 * (shape.head_dim + shape.value_dim) + self.fades) // max(1, tokens)

    def compute_output(
        self,
        parameters: Parameters,
        call: Call,
        *,
        query: Float[Tensor, "B T H D"],
        pairs: Pairs,
        decay: Float[Tensor, "B T H"] | None = None,
        attention: Callable[..., Partial],
    ) -> tuple[tuple[Partial], State]:
        """Compute the partial attention."""
        rotation, tokens, state = self.rotation, call.tokens, call.state
        query = self._scale_by_position(query, call)
        earlier = state["key"].shape[1]
        key, value = append(state["key"], pairs.rotate(rotation)), append(state["value"], pairs.value)
        position = torch.cat((state["position"], pairs.position), dim=1)
        faded = self._compute_fading(call, decay)
        result = attention(query, key, value, position, pairs, call, faded)
        position = forget_ended_documents(position, tokens, earlier)
        return (result,), {"key": key, "value": value, "position": position} | _carry(faded)

    def compute_step(
        self,
        parameters: Parameters,
        call: Call,
        *,
        query: Float[Tensor, "B 1 H D"],
        pairs: Pairs,
        decay: Float[Tensor, "B 1 H"] | None = None,
        attention: Callable[..., Partial],
    ) -> tuple[tuple[Partial], State]:
        """Compute the partial attention of one token, in the document of the state."""
        key, value = append(call.state["key"], pairs.rotate(self.rotation)), append(call.state["value"], pairs.value)
        position = torch.cat((call.state["position"], pairs.position), dim=1)
        seen, (place, limit) = position, find_window(position, pairs, call)
        if place is not None and limit is not None:
            seen = position.masked_fill(place <= limit, -1)
        elif pairs.tokens is not None and pairs.tokens.once(("all",), lambda: all_present(position)):
            seen = None
        faded = self._compute_fading(call, decay)
        # For a single token, the sums of log decays are those of the new state.
        bias = None if faded is None else faded.decay_to_end().transpose(1, 2).unflatten(1, (key.shape[2], -1))
        result = attention(self._scale_by_position(query, call), key, value, seen, bias, call.shape.softcap)
        return (result,), {"key": key, "value": value, "position": position} | _carry(faded)

    def _scale_by_position(self, query: Float[Tensor, "B T H D"], call: Call) -> Float[Tensor, "B T H D"]:
        """Return the queries, with ``length_scale`` multiplied by the factor of their position."""
        if self.length_scale is None:
            return query
        dtype = accumulating(query.dtype)
        scale = (call.tokens.position.to(dtype) + self.length_scale).log() / math.log(self.length_scale)
        return (query.to(dtype) * scale[..., None, None]).to(query.dtype)

    def _compute_fading(self, call: Call, decay: Tensor | None) -> Fading | None:
        return None if decay is None else fading(call.state["faded"], decay, call.tokens)

    def _visible(self, position: Tensor, pairs: Pairs, call: Call, earlier: int) -> Tensor:
        return find_visible(position, pairs, call, earlier, self._ahead(pairs, call))

    def _ahead(self, pairs: Pairs, call: Call) -> Tensor | None:
        """Return the later tokens that each token of the call sees, B T T; None for none. Plain softmax alone follows the source
        here, and pairs that another memory evicts come from earlier tokens."""
        return call.tokens.ahead if self.sees_ahead and pairs.tokens is not None else None

    def attend_masked(
        self, query: Tensor, key: Tensor, value: Tensor, position: Tensor, pairs: Pairs, call: Call, faded: Fading | None = None
    ) -> Partial:
        """Attend to all pairs, masked. position: of the pairs of earlier calls and of this call."""
        visible = self._visible(position, pairs, call, key.shape[1] - query.shape[1])
        return dense(query, key, value, visible, call.shape.softcap, None if faded is None else (faded.totals, faded.since))

    def attend_by_kernel(
        self, query: Tensor, key: Tensor, value: Tensor, position: Tensor, pairs: Pairs, call: Call, faded: Fading | None = None
    ) -> Partial:
        """Attend by fla's kernel, as ``attend_masked``."""
        if self._ahead(pairs, call) is not None:
            raise Refused("in this call tokens see later ones")
        segment = call.tokens.extend_segment(key.shape[1] - query.shape[1])
        since = None if faded is None else faded.since
        return fla_forms.attend_causally(query, key, value, position >= 0, segment, call.shape.window, since)

    def attend_natively(
        self, query: Tensor, key: Tensor, value: Tensor, position: Tensor, pairs: Pairs, call: Call, faded: Fading | None = None
    ) -> Partial:
        """Use PyTorch's own attention, which returns no mass and needs a pair at every token."""
        earlier = key.shape[1] - query.shape[1]
        # Padding is after the real tokens, so the causal mask hides it from them.
        sees_all = call.tokens.segment is None and (call.shape.window is None or key.shape[1] <= call.shape.window)
        causal, dtype = as_bool(earlier == 0 and sees_all and self._ahead(pairs, call) is None), query.dtype
        # Pairs of an earlier call may have another dtype, for example if autocast began since. The wider dtype is used.
        query = query.to(key.dtype)
        if as_bool(query.shape[1] == 1) and sees_all and call.tokens.valid is None and pairs.tokens is call.tokens:
            # Its own pair is present, and it sees all others. The query heads of a key head are as queries of one head.
            groups = query[:, 0].unflatten(1, (key.shape[2], -1))
            output = torch.nn.functional.scaled_dot_product_attention(
                groups, key.transpose(1, 2), value.transpose(1, 2), attn_mask=(position >= 0)[:, None, None]
            )
            return Partial(output.flatten(1, 2)[:, None].to(dtype), None)
        mask = None
        if not causal:
            entry = torch.arange(position.shape[1], device=position.device)
            # A padding query sees itself: a row without any visible entry would be NaN.
            mask = (self._visible(position, pairs, call, earlier) | (entry == entry[earlier:, None]))[:, None]
        states = (states.transpose(1, 2) for states in (query, key, value))
        output = torch.nn.functional.scaled_dot_product_attention(
            *states, attn_mask=mask, is_causal=causal, enable_gqa=query.shape[2] != key.shape[2]
        )
        return Partial(output.transpose(1, 2).to(dtype), None)

    def problem_both_ways(self) -> str | None:
        if self.fades:
            return "a `full` memory with a gate decays over time, so it is causal"
        return None if self.length_scale is None else "a `length_scale` counts earlier tokens, so it is causal"

    def compute_both_ways(
        self, parameters: Parameters, call: Call, *, query: Float[Tensor, "B T H D"], pairs: Pairs
    ) -> tuple[tuple[Partial], State]:
        """Softmax over each token's whole document, before and after it."""
        rotation, tokens = self.rotation, call.tokens
        visible = pairs.present[:, None].expand(-1, query.shape[1], -1)
        if tokens.segment is not None:
            visible = visible & (tokens.segment[:, :, None] == tokens.segment[:, None])
        result = dense(query, pairs.rotate(rotation), pairs.value, visible, call.shape.softcap)
        return (result,), {}


def count_seen_pairs(shape: Shape, tokens: int) -> int:
    """Return the sum over tokens of the pairs that each sees: all earlier ones, or the last ones in a model with a window."""
    window = min(tokens, shape.window or tokens)
    return window * (window + 1) // 2 + (tokens - window) * window


def forget_ended_documents(position: Int[Tensor, "B S"], tokens: Tokens, earlier: int) -> Int[Tensor, "B S"]:
    """Mark the pairs of documents that have ended as absent. earlier: the number of pairs of earlier calls."""
    if tokens.segment is None:
        return position
    return position.masked_fill(tokens.extend_segment(earlier) != tokens.last_segment(), -1)


def find_visible(position: Tensor, pairs: Pairs, call: Call, earlier: int, ahead: Tensor | None = None) -> Bool[Tensor, "B T S"]:
    """Return which of the pairs at these positions, ``B S``, each token sees: earlier ones of its document, in the model's window.

    earlier: the number of pairs of earlier calls. ahead: the later tokens of the call that each token sees, too.
    """
    entry = torch.arange(position.shape[1], device=position.device)
    visible = entry <= entry[earlier:, None]
    if ahead is not None:
        visible = visible | torch.nn.functional.pad(ahead, (earlier, 0))
    visible = (position >= 0)[:, None] & visible
    place, limit = find_window(position, pairs, call)
    if place is not None and limit is not None:
        visible = visible & (place[:, None] > limit[:, :, None])
    segment = call.tokens.extend_segment(earlier)
    return visible if segment is None else visible & (segment[:, earlier:, None] == segment[:, None])


def append(past: Float[Tensor, "B E K x"], new: Float[Tensor, "B T K x"]) -> Float[Tensor, "B S K x"]:
    """Concatenate stored entries and those of the call. Entries of a key head are contiguous in memory, as attention reads
    them."""
    return torch.cat((past.transpose(1, 2), new.transpose(1, 2)), dim=2).transpose(1, 2)


def find_window(
    position: Int[Tensor, "B S"], pairs: Pairs, call: Call
) -> tuple[Int[Tensor, "B S"] | None, Int[Tensor, "B T"] | None]:
    """Return the places of pairs by which a sliding window of the model counts, and the last place that each of the call's tokens
    does not see. Both are None without such a window. Tokens of a row count one by one, whatever their positions, as in
    transformers. Pairs that were evicted by a memory count by position."""
    if call.shape.window is None:
        return None, None
    if pairs.tokens is None:
        return position, call.tokens.position - call.shape.window
    place = (position >= 0).cumsum(1)
    return place, place[:, -call.tokens.position.shape[1] :] - call.shape.window


def _carry(faded: Fading | None) -> State:
    return {} if faded is None else {"faded": faded.decay_to_end()}


def _kernel_obstacle(setting: Setting) -> str | None:
    """Return why a kernel that needs a pair at every token cannot run, or None."""
    return fla_forms.obstacle(setting) or (
        None if setting.every_pair else "it needs a pair of every token, and these are evicted by a memory"
    )


def packed_obstacle(setting: Setting) -> str | None:
    """Return why a kernel that separates documents by their bounds cannot run, or None. For such rows PyTorch's attention would
    need a mask of T × T."""
    return _kernel_obstacle(setting) or (None if setting.documents else "it is for rows of several documents")


def native_obstacle(setting: Setting) -> str | None:
    if setting.needs_mass:
        return "PyTorch's attention returns no mass, and the read needs it"
    if setting.capped:
        return "PyTorch's attention caps no logits"
    if setting.device == "cpu" and size_obstacle(setting):
        return "on a CPU PyTorch's attention would hold T × T logits for values of another size than keys"
    return None if setting.every_pair else "PyTorch's attention needs a pair of every token, and these are evicted by a memory"


def fading(past_sums: Float[Tensor, "B E H"], decay: Float[Tensor, "B T H"], tokens: Tokens) -> Fading:
    """Compute the running sums of a call. past_sums: the sums of the stored entries so far. Padding tokens have no decay."""
    if tokens.valid is not None:
        decay = decay.masked_fill(~tokens.valid[..., None], 0.0)
    running = decay.double().cumsum(1)
    return Fading(running, torch.cat((-past_sums.double(), running), dim=1), past_sums.dtype)
