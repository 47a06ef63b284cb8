"""Latte: attention to the past through a fixed number of latents."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import PositiveInt, field_validator

from blocks import fla_kernels, initialise
from blocks.flow import Partial, Tokens
from blocks.legend import Float, Int, Shape, Tensor, torch
from blocks.memories.base import Memory
from blocks.operation import FLA, REFERENCE, TORCH, Call, Form, Kind, Port, Slot, State, row_obstacle
from blocks.part import Fresh, Parameters, Problem, Shown
from blocks.positions import NoPosition, PositionConfig
from blocks.recurrences import additive, cumulative_fla
from blocks.recurrences.additive.chunked import CHUNK
from blocks.recurrences.cumulative import cumulate
from blocks.tensors import accumulating, as_dtype, repeat_heads


class Latents(Memory):
    """Each token attends to latents with p(l|t). Each latent holds the mean of the values under its own p(s|l,t).

    L is the number of latents per head. Queries and keys here are logits, linear functions of the hidden states, and do not
    depend on pairs. p(l|t) are probabilities, so there is no mass. The weight in a mixture is log Σ_l exp(q_tl); beside a
    memory of logit b, p(l|t) is normalised over that memory and the latents together (definition 3).
    """

    equation: ClassVar[str] = (
        "o_t = Σ_l p(l|t) Σ_s p(s|l,t) v_s, p(l|t) = softmax_l(x_t·w_l^q), p(s|l,t) = softmax_{s≤t}(x_s·w_l^k)"
    )
    source: ClassVar[str] = "Latte, definitions 1 to 3 (eq. 5 to 14)"
    reads: ClassVar[Kind] = Kind.HIDDEN
    kind: Literal["latents"] = "latents"
    size: PositiveInt = 128
    """Number of latents of the group of heads, divided evenly among the heads."""

    @property
    def declared_size(self) -> int:
        return self.size

    @field_validator("weight")
    @classmethod
    def _weighs_itself(cls, weight: object) -> None:
        if weight is not None:
            raise ValueError("latents have their own weight, computed at each token; remove `weight`")

    @field_validator("position")
    @classmethod
    def _turns_nothing(cls, position: PositionConfig | None) -> PositionConfig | None:
        if position is not None and not isinstance(position, NoPosition):
            raise ValueError("latents have no queries and keys to rotate; remove `position`")
        return position

    def has_mass(self) -> bool:
        return False

    @property
    def weighs_values(self) -> bool:
        return True

    def pairs_held(self, shape: Shape, tokens: int) -> float:
        """L latents per head, of V values each. A pair is D + V numbers."""
        return self.size // shape.heads * shape.value_dim / (shape.head_dim + shape.value_dim)

    def inputs(self, shape: Shape) -> tuple[Port, ...]:
        return (
            Port("hidden", Kind.HIDDEN, dim=shape.hidden_size),
            Port("value", Kind.VALUE, shape.key_heads, shape.value_dim),
        )

    def forms(self, shape: Shape) -> tuple[Form, ...]:
        return (
            Form(
                REFERENCE,
                "one token after the other, with a running maximum (eq. 19)",
                partial(self.compute_output, means=_sequential),
            ),
            Form(
                FLA, "fused_additive_gate, then chunk_gla: chunk_lightnet with gates of float32",
                partial(self.compute_output, means=_by_kernels), fla_kernels.obstacle, missing=cumulative_fla.missing, refuses=True,
            ),
            Form(TORCH, "one step of eq. 19", self.compute_step, row_obstacle, decode=True),
            *(
                Form(
                    form.backend,
                    "running sums of the key logits by pairs of neighbours, then the additive recurrence with a decay per latent",
                    partial(self.compute_output, means=partial(_by_recurrence, recurrence=form.run)),
                    form.obstacle,
                )
                for form in additive.FORMS
                if form.backend == TORCH and not form.decode
            ),
        )  # fmt: skip

    def forms_both_ways(self, shape: Shape) -> tuple[Form, ...]:
        def both_ways(pooled: Callable[..., Tensor]) -> Callable[..., Any]:
            return partial(self.compute_both_ways, pooled=pooled)

        return (
            Form(REFERENCE, "T × T weights of each document", both_ways(partial(_by_document, from_left=True))),
            Form(TORCH, "sums over each document, whole", both_ways(_by_document)),
        )  # fmt: skip

    def misfit(self, shape: Shape) -> Problem | None:
        if self.size % shape.heads == 0:
            return super().misfit(shape)
        return (
            f"{self.size} latents do not split evenly over {shape.heads} heads; "
            f"set `size` to a multiple of {shape.heads}, such as {math.ceil(self.size / shape.heads) * shape.heads}"
        ), ("size",)

    def parameters(self, shape: Shape) -> dict[str, Fresh]:
        """W_q and W_k: one row per latent, head after head."""
        width = shape.hidden_size
        return {name: Fresh((self.size, width), initialise.fan_in(width)) for name in ("query", "key")}

    def state(self, shape: Shape) -> dict[str, Slot]:
        """The mean of values of each latent, and its normaliser Σ_s exp(θ_s), stored as a maximum and the sum divided by the
        exponential of it."""
        latents = (shape.heads, self.size // shape.heads)
        return {
            "state": Slot((*latents, shape.value_dim), "state"),
            "maximum": Slot(latents, "state", -math.inf),
            "total": Slot(latents, "state", minimum=0.0),
        }

    def matrix(self, state: State) -> Float[Tensor, "B H L V"]:
        """Return the means of the latents."""
        return state["state"].double()

    def flops(self, shape: Shape, tokens: int) -> int:
        """The logits, then decay, update and read of each number of the state."""
        return 4 * self.size * shape.hidden_size + 5 * self.size * shape.value_dim

    def prefill_flops(self, shape: Shape, tokens: int) -> int:
        """The logits, one update and one read of the state per token, and the pairs of the chunk. Bidirectional heads sum over
        the whole text, without chunks."""
        chunk = 0 if shape.both_ways else 2 * min(CHUNK, tokens) * (self.size + shape.heads * shape.value_dim)
        return chunk + 4 * self.size * (shape.hidden_size + shape.value_dim)

    def compute_output(
        self,
        parameters: Parameters,
        call: Call,
        *,
        hidden: Float[Tensor, "B T C"],
        value: Float[Tensor, "B T K V"],
        means: Callable[..., tuple[Tensor, State]],
    ) -> tuple[tuple[Partial], State]:
        """Definition 2: add each token's value to the means, and return the token's output. hidden: the input of the logits."""
        query, key = self._logits(parameters, hidden, call)
        output, state = means(query.softmax(-1), key, value, call.tokens.segment, call.state)
        return (Partial(output.to(value.dtype), None, query.logsumexp(-1)),), state

    def compute_step(
        self, parameters: Parameters, call: Call, *, hidden: Float[Tensor, "B 1 C"], value: Float[Tensor, "B 1 K V"]
    ) -> tuple[tuple[Partial], State]:
        """Compute one token. The remaining share of each latent's mean and the share of the new value add up to 1."""
        query, key = self._logits(parameters, hidden, call)
        state, logits = call.state, key.squeeze(1)
        maximum = torch.maximum(state["maximum"], logits.detach())
        old_total, added = state["total"] * (state["maximum"] - maximum).exp(), (logits - maximum).exp()
        total = old_total + added
        mean, old_share = state["state"], (old_total / total)[..., None]
        mean = mean.mul_(old_share) if call.in_place else mean * old_share
        # There is one value per key head, for the latents of all query heads that share it.
        batch, _, shared, size = value.shape
        means, new = mean.view(batch, shared, -1, size), (added / total).view(batch, shared, -1, 1)
        brought = as_dtype(value, mean.dtype).view(batch, shared, 1, size)
        mean = (means.addcmul_(new, brought) if call.in_place else means.addcmul(new, brought)).view_as(mean)
        output = query.softmax(-1).flatten(0, 2)[:, None].bmm(mean.flatten(0, 1)).view(batch, 1, -1, size)
        result = Partial(as_dtype(output, value.dtype), None, query.logsumexp(-1))
        return (result,), {"maximum": maximum, "total": total, "state": mean}

    def problem_both_ways(self) -> None:
        return None

    def compute_both_ways(
        self,
        parameters: Parameters,
        call: Call,
        *,
        hidden: Float[Tensor, "B T C"],
        value: Float[Tensor, "B T K V"],
        pooled: Callable[[Tensor, Tensor, Tensor, Tokens], Tensor],
    ) -> tuple[tuple[Partial], State]:
        """Definition 1: each token attends to the means over its whole document. There is no state: every token is in this
        call."""
        query, key = self._logits(parameters, hidden, call)
        output = pooled(query.softmax(-1), key, value, call.tokens)
        return (Partial(output.to(value.dtype), None, query.logsumexp(-1)),), {}

    def shows(self, parameters: Parameters, call: Call, inputs: Mapping[str, Any]) -> dict[str, Shown]:
        query, _ = self._logits(parameters, inputs["hidden"], call)
        return {"p(l|t)": Shown(query.softmax(-1), ("token", "head", "latent"), "the weight of each latent at each token")}

    def _logits(
        self, parameters: Parameters, inputs: Tensor, call: Call
    ) -> tuple[Float[Tensor, "B T H L"], Float[Tensor, "B T H L"]]:
        """Return x_t·w_l^q and θ = x_t·w_l^k. θ is -inf at padding."""
        dtype = accumulating(inputs.dtype)
        seen = as_dtype(inputs, dtype)
        logits = (torch.nn.functional.linear(seen, as_dtype(parameters[name], dtype)) for name in ("query", "key"))
        query, key = (states.view(*states.shape[:2], call.shape.heads, -1) for states in logits)
        if call.tokens.valid is not None:
            key = key.masked_fill(~call.tokens.valid[..., None, None], -math.inf)
        return query, key


def _by_recurrence(
    query: Float[Tensor, "B T H L"],
    logits: Float[Tensor, "B T H L"],
    value: Float[Tensor, "B T K V"],
    segment: Int[Tensor, "B T"] | None,
    state: State,
    *,
    recurrence: Callable[..., tuple[Tensor, Tensor]],
) -> tuple[Float[Tensor, "B T H V"], State]:
    """Run a form of the additive recurrence, with keys and decays that add up to 1."""
    sums = cumulate(logits, segment, state["maximum"], state["total"])
    output, mean = recurrence(query, sums.key, value.to(query.dtype), sums.log_decay, segment, state["state"])
    return output, {"maximum": sums.maximum, "total": sums.total, "state": mean}


def _by_kernels(
    query: Float[Tensor, "B T H L"],
    logits: Float[Tensor, "B T H L"],
    value: Float[Tensor, "B T K V"],
    segment: Int[Tensor, "B T"] | None,
    state: State,
) -> tuple[Float[Tensor, "B T H V"], State]:
    """Run fla's kernels, whose products are in the values' dtype."""
    past_state = state["maximum"], state["total"], state["state"]
    output, *carried = cumulative_fla.means(query, logits, value, segment, *past_state)
    return output, dict(zip(("maximum", "total", "state"), carried, strict=True))


def _sequential(
    query: Float[Tensor, "B T H L"],
    logits: Float[Tensor, "B T H L"],
    value: Float[Tensor, "B T K V"],
    segment: Int[Tensor, "B T"] | None,
    state: State,
) -> tuple[Float[Tensor, "B T H V"], State]:
    """Eq. 19, then eq. 10: α and ṽ divided by the exponential of the running maximum. The maximum cancels, so it has no
    gradient."""
    value = repeat_heads(value.to(query.dtype), query.shape[2])
    maximum, alpha = state["maximum"], state["total"]
    numerator = state["state"] * alpha[..., None]
    mean, outputs = state["state"], []
    for t in range(query.shape[1]):
        if segment is not None:
            before = segment[:, t - 1] if t else torch.zeros_like(segment[:, 0])
            maximum = maximum.masked_fill((segment[:, t] != before)[:, None, None], -math.inf)
        largest = torch.maximum(maximum, logits[:, t].detach())
        finite = largest.masked_fill(largest.isneginf(), 0.0)
        correction, added = (maximum - finite).exp(), (logits[:, t] - finite).exp()
        maximum, alpha = largest, alpha * correction + added
        numerator = numerator * correction[..., None] + added[..., None] * value[:, t, :, None]
        mean = numerator / alpha.masked_fill(alpha == 0, 1.0)[..., None]
        outputs.append(torch.einsum("bhl,bhld->bhd", query[:, t], mean))
    return torch.stack(outputs, dim=1), {"maximum": maximum, "total": alpha, "state": mean}


def _by_document(
    query: Float[Tensor, "B T H L"],
    logits: Float[Tensor, "B T H L"],
    value: Float[Tensor, "B T K V"],
    tokens: Tokens,
    *,
    from_left: bool = False,
) -> Float[Tensor, "B T H V"]:
    """softmax_L(Q) softmax_T(K) V, document by document (eq. 5 to 7). query: p(l|t). logits: of p(s|l), -inf where there is no
    token. from_left: use T × T weights."""
    states = query, logits, repeat_heads(value.to(query.dtype), query.shape[2])
    return tokens.each_document(partial(_pool, from_left=from_left), *states)[0]


def _pool(
    query: Float[Tensor, "B T H L"], logits: Float[Tensor, "B T H L"], value: Float[Tensor, "B T H V"], *, from_left: bool
) -> tuple[Float[Tensor, "B T H V"]]:
    """softmax_L(Q) softmax_T(K) V, from the left in the reference: T × T weights (eq. 5); from the right otherwise (eq. 7)."""
    query, logits, value = (states.transpose(1, 2) for states in (query, logits, value))
    largest = logits.detach().amax(2, keepdim=True)
    shares = (logits - largest.masked_fill(largest.isneginf(), 0.0)).exp()
    total = shares.sum(2, keepdim=True)
    shares = (shares / total.masked_fill(total == 0, 1.0)).mT
    output = (query @ shares) @ value if from_left else query @ (shares @ value)
    return (output.transpose(1, 2),)
