"""Softmax attention over pairs that are stored compressed: multi-head latent attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from blocks.calibration import States
from blocks.flow import Pairs, Partial
from blocks.initialise import Fill
from blocks.legend import Float, Int, Shape, Tensor, torch
from blocks.memories.base import Memory
from blocks.memories.full import Full, count_seen_pairs, find_visible, forget_ended_documents, native_obstacle, packed_obstacle
from blocks.operation import FLA, REFERENCE, TORCH, Call, Form, Slot, State
from blocks.part import Fresh, Parameters, Problem
from blocks.positions import NoPosition
from blocks.softmax import dense, fla_forms
from blocks.tensors import accumulating, repeat_heads

UNROTATED = NoPosition()
DISTANCES = 64
"""Distances between query and key over which a start averages rotations; they grow geometrically up to the length of its rows."""
SMALLEST = 1e-9
"""The smallest weight of an error in a start, as a share of the largest."""


class Compressed(Memory):
    """Softmax over every pair of the document. The keys and values of a token, of all key heads, are stored as ``rank`` numbers.

    Of each key, the ``rope`` coordinates with the largest scores are rotated and stored as they are. x_s has the values of all key
    heads, and the other coordinates of their keys, before rotation. With a rank of all numbers nothing is lost, and with
    ``rotate: all`` this is ``full``. In DeepSeek-V2, ``rotate`` is ``kept``, the kept coordinates are common to all heads, and both
    parts are projected from the hidden states.
    """

    equation: ClassVar[str] = (
        "o_t = Σ_s softmax_s(R_t q_t·R_s (k_s over kept coordinates, k′_s over all others) / √D) v′_s, (v′_s, k′_s) = U c_s, "
        "c_s = A x_s, s ≤ t; R is 1 for k′ with `rotate: kept`"
    )
    source: ClassVar[str] = (
        "DeepSeek-V2, arXiv:2405.04434, section 2.1; of pretrained models: arXiv:2502.14837 (MHA2MLA), arXiv:2502.07864 "
        "(TransMLA), arXiv:2603.17946 (CARE); keys rotated after they are restored: arXiv:2407.21118 (Palu)"
    )
    grows: ClassVar[bool] = True
    receives_rotated: ClassVar[bool] = False
    by_coordinate: ClassVar[bool] = True
    joins_values: ClassVar[bool] = True
    kind: Literal["compressed"] = "compressed"
    rank: PositiveInt | Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Numbers of a token that are stored for all values, and for the coordinates of keys that are not kept; or, below 1, their
    share of the numbers of all keys and values."""
    rope: NonNegativeInt = 0
    """Coordinates of each key that are rotated and stored as they are."""
    rotate: Literal["all", "kept"] = "all"
    """Which coordinates are rotated. ``all``: every token restores and rotates all keys. ``kept``: restored coordinates are not
    rotated, so decode compares stored vectors with projected queries; an untrained model is further from its source."""

    @property
    def weighs_values(self) -> bool:
        return False

    def misfit(self, shape: Shape) -> Problem | None:
        if self.rope > shape.head_dim:
            return f"a key has {shape.head_dim} coordinates; set `rope` to at most {shape.head_dim}", ("rope",)
        if self.rope % 2 and self.rotation.base:
            return f"a rotation turns pairs of coordinates, and `rope` is {self.rope}; set an even number", ("rope",)
        limit = _joined(shape) - shape.key_heads * self.rope
        if self._rank(shape) > limit:
            return f"a token has {limit} numbers to compress in these heads; set `rank` to at most {limit}", ("rank",)
        return super().misfit(shape)

    def _rank(self, shape: Shape) -> int:
        """Return the number of stored numbers."""
        return self.rank if isinstance(self.rank, int) else max(1, round(self.rank * _joined(shape)))

    def parameters(self, shape: Shape) -> dict[str, Fresh]:
        joined, rank = _joined(shape), self._rank(shape)
        words = "identity matrices, without the columns of kept coordinates" if self.rope else "identity matrices"
        fill = Fill(words, partial(_fill_stored, shape=shape, rope=self.rope))
        down, up = (Fresh(sizes, fill) for sizes in ((rank, joined), (joined, rank)))
        score = {"score": Fresh((shape.key_heads, shape.head_dim), FALLING, precise=True)} if self.rope else {}
        return super().parameters(shape) | score | {"down": down, "up": up}

    def begin(self, states: States, shape: Shape) -> dict[str, Tensor]:
        """Compute the parameters at which the error is smallest on these states, for each rank: of values, and of logits.

        Errors are summed over query heads. A squared error of a logit counts as many times as the values vary. The kept coordinates
        are those of the largest logits; with ``rotate: kept``, of the largest differences that a rotation makes to logits. The best
        rank-r compression of x, in the norm of a matrix G, is by the first eigenvectors of √G E[x xᵀ] √G.
        """
        query, key, value = (tensor.double() for tensor in (states.query, states.key, states.value))
        width, heads = key.shape[-1], key.shape[1]
        distance = torch.logspace(0, math.log10(max(2, states.length)), DISTANCES, dtype=torch.float64).round().long()
        basis = torch.eye(width, dtype=torch.float64, device=key.device).expand(1, DISTANCES, width, width)
        turns = self.rotation.rotate(basis, distance[None].to(key.device))[0]
        of_queries = torch.einsum("nhd,nhe->hde", query, query).unflatten(0, (heads, -1)).sum(1) / len(query)
        parameters, is_coded = dict[str, Tensor](), torch.ones_like(key[0])
        if self.rope:
            parameters["score"] = self._score(of_queries, key.square().mean(0), turns)
            is_coded = is_coded.scatter(-1, choose_coordinates(parameters["score"], self.rope), 0.0)
        if self.rotate == "all":
            of_queries = torch.einsum("tij,hjk,tlk->hil", *(turns.mT, of_queries, turns.mT)) / DISTANCES
        varied = (value - value.mean(0)).square().mean(0).sum(-1)
        of_values = torch.eye(heads * value.shape[-1], dtype=torch.float64, device=key.device) * (query.shape[1] // heads)
        weight = torch.block_diag(of_values, *(varied[:, None, None] * of_queries / width))
        joined = torch.cat((value.flatten(1), (key * is_coded).flatten(1)), dim=-1)
        root, inverse = _roots(weight)
        vectors = torch.linalg.eigh(root @ (joined.T @ joined / len(joined)) @ root).eigenvectors[:, -self._rank(shape) :].flip(-1)
        return parameters | {"down": vectors.T @ root, "up": inverse @ vectors}

    def _score(self, of_queries: Float[Tensor, "K D D"], of_keys: Float[Tensor, "K D"], turns: Float[Tensor, "n D D"]) -> Tensor:
        """Return a score of each coordinate, equal for both of a pair that is rotated: the mean square of its part of logits, times
        the mean square of what a rotation adds to it with ``rotate: kept``."""
        turned = turns.square().mean(0) * (1 - torch.eye(turns.shape[-1], device=turns.device))
        partner = torch.where(turned.amax(-1) > 0, turned.argmax(-1), torch.arange(len(turned), device=turns.device))
        lost = (turns - torch.eye(len(turned), device=turns.device)).square().sum(-1).mean(0)

        def of_pairs(numbers: Tensor) -> Tensor:
            return numbers + numbers[..., partner]

        score = of_pairs(of_queries.diagonal(dim1=-2, dim2=-1)) * of_pairs(of_keys)
        return score * of_pairs(lost) if self.rotate == "kept" else score

    def state(self, shape: Shape) -> dict[str, Slot]:
        """Return the state before the first token."""
        return self.state_after(shape, 0)

    def state_after(self, shape: Shape, tokens: int) -> dict[str, Slot]:
        """Return the state after this many tokens."""
        slots = {"key": Slot((tokens, shape.key_heads, self.rope), "pairs")} if self.rope else {}
        return slots | {"code": Slot((tokens, self._rank(shape)), "pairs"), "position": Slot((tokens,), "int64", -1, order="first")}

    def pairs_held(self, shape: Shape, tokens: int) -> float:
        return tokens * (shape.key_heads * self.rope + self._rank(shape)) / _joined(shape)

    @property
    def rotates_restored_keys(self) -> bool:
        return self.rotate == "all"

    @property
    def sees_ahead(self) -> bool:
        return True

    def forms(self, shape: Shape) -> tuple[Form, ...]:
        softmax = Full()
        masked, by_kernel, natively = (
            partial(self.compute_output, attention=attention)
            for attention in (softmax.attend_masked, softmax.attend_by_kernel, softmax.attend_natively)
        )
        kernel, step = fla_forms.ATTENTION, Form(TORCH, "stored vectors, with projected queries", self.compute_step, decode=True)
        return (
            Form(REFERENCE, "all pairs, restored", masked),
            Form(FLA, f"{kernel.name} of restored pairs", by_kernel, packed_obstacle, missing=kernel.missing, refuses=True),
            *((step,) if self.rotate == "kept" else ()),
            Form(
                TORCH, "scaled_dot_product_attention", natively, native_obstacle, picks="FlashAttention's kernel or cuDNN's"
            ),
            Form(TORCH, "all pairs, restored, in blocks of 512 queries", masked),
        )  # fmt: skip

    def flops(self, shape: Shape, tokens: int) -> int:
        seen, rank = min(tokens + 1, shape.window or tokens + 1), self._rank(shape)
        sizes = shape.head_dim + shape.value_dim
        if self.rotate == "all":
            return 2 * rank * _joined(shape) * (1 + seen) + 2 * seen * shape.heads * sizes
        return 2 * rank * (_joined(shape) + shape.heads * sizes) + 2 * seen * shape.heads * (self.rope + 2 * rank)

    def prefill_flops(self, shape: Shape, tokens: int) -> int:
        """Return the mean over the tokens, with restored pairs."""
        seen = count_seen_pairs(shape, tokens)
        pair_flops = 2 * (shape.head_dim + shape.value_dim)
        return 4 * self._rank(shape) * _joined(shape) + seen * shape.heads * pair_flops // max(1, tokens)

    def compute_output(
        self,
        parameters: Parameters,
        call: Call,
        *,
        query: Float[Tensor, "B T H D"],
        pairs: Pairs,
        attention: Callable[..., Partial],
    ) -> tuple[tuple[Partial], State]:
        """Compute the partial attention from restored keys and values: the definition."""
        shape, coordinates = call.shape, self._rotated_coordinates(parameters, call.shape)
        state = self._append(parameters, call, pairs, coordinates)
        restored = torch.nn.functional.linear(state["code"], parameters["up"].to(state["code"].dtype))
        value, key = (
            part.unflatten(-1, (shape.key_heads, -1)) for part in restored.tensor_split([shape.key_heads * shape.value_dim], -1)
        )
        rotated = self.rotation.rotate_tokens(query, call.tokens)
        if self.rotate == "all":
            query, key = rotated, self.rotation.rotate(key, state["position"])
        if self.rope:
            by_query = repeat_heads(coordinates, shape.heads, dim=0).expand(*query.shape[:2], -1, -1)
            query = query.scatter(-1, by_query, rotated.gather(-1, by_query))
            key = key.scatter(-1, coordinates.expand(*key.shape[:2], -1, -1), state["key"])
        return (attention(query, key, value, state["position"], pairs, call),), _forget(state, call, query.shape[1])

    def compute_step(
        self, parameters: Parameters, call: Call, *, query: Float[Tensor, "B T H D"], pairs: Pairs
    ) -> tuple[tuple[Partial], State]:
        """Compute the same from stored vectors: queries are multiplied by the up-projection of keys, outputs by that of values."""
        shape, coordinates = call.shape, self._rotated_coordinates(parameters, call.shape)
        state = self._append(parameters, call, pairs, coordinates)
        dtype, by_query = accumulating(query.dtype), repeat_heads(coordinates, shape.heads, dim=0)
        value_weight, key_weight = (
            repeat_heads(part.to(dtype).unflatten(0, (shape.key_heads, -1)), shape.heads, dim=0)
            for part in parameters["up"].tensor_split([shape.key_heads * shape.value_dim])
        )
        code = state["code"].to(dtype)[:, :, None].expand(-1, -1, shape.key_heads, -1)
        projected = torch.einsum("bthd,hdr->bthr", without_coordinates(query, by_query).to(dtype), key_weight)
        key = code
        if self.rope:
            kept_query = self.rotation.rotate_tokens(query, call.tokens).gather(-1, by_query.expand(*query.shape[:2], -1, -1))
            projected, key = (
                torch.cat((first.to(dtype), coded), -1) for first, coded in ((kept_query, projected), (state["key"], code))
            )
        visible = find_visible(state["position"], pairs, call, key.shape[1] - query.shape[1])
        scale = math.sqrt(projected.shape[-1] / shape.head_dim)  # ``dense`` divides by the root of the width
        result = dense(projected * scale, key, code, visible, shape.softcap)
        output = torch.einsum("bthr,hvr->bthv", result.output, value_weight)
        return (Partial(output.to(query.dtype), result.lse),), _forget(state, call, query.shape[1])

    def _rotated_coordinates(self, parameters: Parameters, shape: Shape) -> Int[Tensor, "K n"]:
        if not self.rope:
            return torch.empty(shape.key_heads, 0, dtype=torch.long, device=parameters["down"].device)
        return choose_coordinates(parameters["score"], self.rope)

    def _append(self, parameters: Parameters, call: Call, pairs: Pairs, coordinates: Int[Tensor, "K n"]) -> State:
        """Return the state with the pairs of the call."""
        joined = torch.cat((pairs.value.flatten(2), without_coordinates(pairs.rotate(UNROTATED), coordinates).flatten(2)), dim=-1)
        new = {"code": torch.nn.functional.linear(joined, parameters["down"].to(joined.dtype)), "position": pairs.position}
        if self.rope:
            new["key"] = pairs.rotate(self.rotation).gather(-1, coordinates.expand(*joined.shape[:2], -1, -1))
        return {name: torch.cat((call.state[name], states.to(call.state[name].dtype)), dim=1) for name, states in new.items()}


def choose_coordinates(score: Float[Tensor, "K D"], count: int) -> Int[Tensor, "K n"]:
    """Return the coordinates with the largest scores of each key head, in rising order."""
    return score.detach().topk(count, dim=-1).indices.sort(dim=-1).values


def without_coordinates(states: Float[Tensor, "B T h D"], coordinates: Int[Tensor, "h n"]) -> Float[Tensor, "B T h D"]:
    """Return the states with zeros in the kept coordinates of each head."""
    return states * torch.ones_like(states[0, 0]).scatter(-1, coordinates, 0.0)


def _forget(state: State, call: Call, length: int) -> State:
    """Return the state without the pairs of documents that have ended. length: the tokens of the call."""
    position = state["position"]
    return state | {"position": forget_ended_documents(position, call.tokens, position.shape[1] - length)}


def _roots(weight: Float[Tensor, "M M"]) -> tuple[Tensor, Tensor]:
    """Return the square root of a symmetric matrix, and the root's inverse. Small eigenvalues are raised to ``SMALLEST``."""
    numbers, vectors = torch.linalg.eigh(weight)
    roots = numbers.clamp(min=SMALLEST * numbers[-1]).sqrt()
    return (vectors * roots) @ vectors.T, (vectors / roots) @ vectors.T


def _joined(shape: Shape) -> int:
    """Return the numbers of a token's keys and values."""
    return shape.key_heads * (shape.head_dim + shape.value_dim)


def _fill_falling(tensor: Tensor, _generator: torch.Generator | None) -> None:
    width = tensor.shape[-1]
    tensor.copy_(-(torch.arange(width, device=tensor.device) % max(1, width // 2)).expand_as(tensor))


def _fill_stored(tensor: Tensor, _generator: torch.Generator | None, *, shape: Shape, rope: int) -> None:
    """Fill a matrix, or its transpose, that stores the first numbers of a token as they are. Kept coordinates are zeros in x, and
    would be stored for nothing."""
    of_values = torch.ones(shape.key_heads * shape.value_dim, device="cpu")
    score = torch.empty(shape.key_heads, shape.head_dim, device="cpu")
    FALLING(score)
    is_coded = torch.ones_like(score).scatter(-1, choose_coordinates(score, rope), 0.0)
    numbers = torch.cat((of_values, is_coded.flatten())).nonzero()[:, 0]
    rows = torch.nn.functional.one_hot(numbers[: min(tensor.shape)], _joined(shape))
    tensor.copy_(rows if tensor.shape == rows.shape else rows.T)


FALLING = Fill("falling with the frequency", _fill_falling)
"""Fill scores so that the fastest rotations are kept, in the two-halves layout."""
