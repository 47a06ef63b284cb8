"""The common part of memories whose token edits a state: gates of its hidden state set what is removed and what is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from blocks.flow import Features, Pairs, Partial
from blocks.gates.base import MatrixRank, matrices
from blocks.legend import Float, Shape, Tensor
from blocks.memories.base import Memory, Misplaced
from blocks.memories.recurrent import Recurrent, run, stop_at_padding
from blocks.operation import FLA, Call, Form, Kind, Port, Slot, State
from blocks.part import Fresh, Parameters
from blocks.recurrences.rank_one.chunked import CHUNK
from blocks.tensors import accumulating, as_dtype, repeat_heads


class Edited(Recurrent):
    """A state of matrices that each token edits by several gates. The output is a raw numerator: there is no mass."""

    takes_several: ClassVar[bool] = False
    decay_ranks: ClassVar[frozenset[str]] = frozenset({"none", "head", "channel"})

    def has_mass(self) -> bool:
        return False

    def problem_between(self, above: Sequence[Memory], below: Mapping[str, Memory], *, edges: bool) -> Iterator[Misplaced]:
        if above:
            yield (
                "its gates belong to the token of the pair, and this memory receives pairs that another one evicts later; let it "
                f"receive every pair (`flow: parallel`, or the edge `pairs -> {self.called}`), or use `delta`, whose rate is "
                "stored with the pair",
                ("kind",),
            )

    def inputs(self, shape: Shape) -> tuple[Port, ...]:
        return (*super().inputs(shape), Port("hidden", Kind.HIDDEN, dim=shape.hidden_size))

    def state(self, shape: Shape) -> dict[str, Slot]:
        return {"state": Slot((shape.state_heads, shape.features, shape.value_dim), "state")}

    def compute(
        self, parameters: Parameters, call: Call, query: Tensor, arriving: Features | None, decay: Tensor | None, recurrence: Form,
        *, pairs: Pairs | None, hidden: Float[Tensor, "B T C"] | None = None,
    ) -> tuple[Partial, State]:  # fmt: skip
        """Edit the state by each token's pair, and compute the token's output."""
        assert pairs is not None, "it receives every pair"
        assert arriving is not None, "it receives every pair"
        assert hidden is not None, "the graph passes it"
        key = repeat_heads(arriving.key, call.shape.state_heads)
        # fla's kernels multiply in the model's dtype, and sum in float32 by themselves.
        value = pairs.value if recurrence.backend == FLA else as_dtype(pairs.value, accumulating(pairs.value.dtype))
        key, value, *edits = self.edits(parameters, call.shape, key, value, hidden)
        inputs = (arriving.fill_absent(key, 0.0), value, *(arriving.fill_absent(edit, 0.0) for edit in edits))
        log_decay = stop_at_padding(decay, call.tokens)
        output, matrix = run(recurrence, call, query, *inputs, log_decay, call.tokens.segment, call.state["state"])
        return Partial(self.scale_output(output, query.shape[-1]), None), {"state": matrix}

    def edits(
        self,
        parameters: Parameters,
        shape: Shape,
        key: Float[Tensor, "B T N F"],
        value: Float[Tensor, "B T K V"],
        hidden: Float[Tensor, "B T C"],
    ) -> tuple[Tensor, ...]:
        """Return the key and value that are written, and the further inputs of the recurrence. If no pair is written, the key and
        the inputs after the value are 0."""
        raise NotImplementedError

    def scale_output(self, output: Float[Tensor, "B T H V"], features: int) -> Float[Tensor, "B T H V"]:
        """Return the output, times the memory's scale."""
        return output

    def matrix(self, state: State) -> Float[Tensor, "B N F V"]:
        return state["state"].double()

    def products(self, shape: Shape) -> int:
        """Number of products of a vector of features and the state per token, beside those of its queries."""
        raise NotImplementedError

    def flops_of_gates(self, shape: Shape) -> int:
        """Of the gates, a token."""
        raise NotImplementedError

    def flops(self, shape: Shape, tokens: int) -> int:
        entry = 2 * shape.features * shape.value_dim
        decay = 0 if self.gate.rank_of_decay == "none" else entry // 2
        edited = (self.products(shape) * entry + decay) * shape.state_heads
        return edited + entry * shape.heads + self.flops_of_gates(shape)

    def prefill_flops(self, shape: Shape, tokens: int) -> int:
        """Edits and reads of the state, the chunk's own pairs, and the triangular system of its keys."""
        chunk = min(CHUNK, tokens)
        pairs = 2 * chunk * shape.heads * (shape.features + shape.value_dim)
        system = chunk * shape.state_heads * (3 * shape.features + shape.value_dim)
        return pairs + (self.products(shape) - 1) * system + self.flops(shape, tokens)


def gate_matrices(name: str, width: int, columns: int, rank: MatrixRank, bias: Fresh) -> dict[str, Fresh]:
    """The parameters of a gate of the hidden state: matrices of a rank, and a bias, by names that begin with the gate's."""
    fresh = matrices(width, columns, rank) | {"bias": bias}
    return {f"{name}_{key}": parameter for key, parameter in fresh.items()}


def of_gate(name: str, parameters: Parameters) -> dict[str, Tensor]:
    """The parameters of that gate, by the names that ``logits`` of ``blocks.gates.base`` has for them."""
    return {key.removeprefix(f"{name}_"): tensor for key, tensor in parameters.items() if key.startswith(f"{name}_")}
