"""Common functions of the forms on flash-linear-attention (fla): when they can run, packed documents, padding of sizes.

fla's kernels expect B T H D with the same number of heads in all inputs, in float32 or bfloat16, and keep states in float32.
Several documents are concatenated into one row, with their bounds (``cu_seqlens``) and one state for each document.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata

from blocks.kernels import FLASH_LINEAR_ATTENTION, Kernel, Refused, gpu_obstacle
from blocks.legend import Bool, Float, Int, Tensor, torch
from blocks.operation import Setting, pair_obstacle
from blocks.tensors import repeat_heads

COLUMNS = 8
"""Numbers of features and values are padded to a multiple of this. Other widths leave the kernels' vectorised loads."""


def kernel(module: str, name: str) -> Kernel:
    """Return a public function of the library."""
    return Kernel(f"fla.{module}", name, FLASH_LINEAR_ATTENTION)


def missing_of(*kernels: Kernel) -> str | None:
    """Return the message on missing packages for a form that calls these kernels; None if all are installed."""
    return next((absent for each_kernel in kernels if (absent := each_kernel.missing())), None)


def in_chunks(
    run: Kernel, inputs: Mapping[str, Tensor], segment: Int[Tensor, "B T"] | None, state: Float[Tensor, "B N F V"]
) -> tuple[Tensor, Tensor]:
    """Run a chunked kernel. Return its outputs and its final state.

    inputs: by the kernel's names, with one entry per query head.
    """
    entering = pad_state(state, inputs["q"].shape[2])
    if segment is None:
        output, final_state = run(**inputs, initial_state=entering, scale=1.0, output_final_state=True)
        return remove_padding(output, final_state, state)
    documents = rows(segment)
    flat = {name: one_row(tensor) for name, tensor in inputs.items()}
    start = documents.states(entering)
    output, final_state = run(**flat, initial_state=start, cu_seqlens=documents.bounds, scale=1.0, output_final_state=True)
    return remove_padding(output.unflatten(1, segment.shape).squeeze(0), documents.final_state(final_state), state)


def obstacle(setting: Setting) -> str | None:
    """Return why a form of fla's chunked kernels cannot run, or None."""
    if setting.dtype == "float16":
        return "sums over a long text leave the range of float16, the type of its kernels' outputs"
    if setting.one_token:
        return "its chunks are for several tokens"
    return gpu_obstacle(setting)


def step_obstacle(setting: Setting) -> str | None:
    """Return why a form of fla's recurrent kernels, for one token, cannot run, or None."""
    if setting.gradients:
        return "its kernel of one token has no gradient"
    if setting.shape is not None and setting.shape.state_heads and setting.shape.state_heads != setting.shape.heads:
        return "its kernel would copy a state for each of the query heads that share it"
    return pair_obstacle(setting) or obstacle(setting._replace(one_token=False))


def refuse_wrong_gradients(gates: Tensor) -> None:
    """Raise Refused if the gradients of a decay per head would be wrong: on Hopper, with Triton from 3.4 to before 3.7.1."""
    if gates.is_cuda and torch.is_grad_enabled() and _is_outdated() and torch.cuda.get_device_capability(gates.device)[0] == 9:
        raise Refused("Triton before 3.7.1 computes wrong gradients of its gated kernels on Hopper: pip install 'triton>=3.7.1'")


@cache
def _is_outdated() -> bool:
    from packaging.version import Version

    return Version("3.4") <= Version(metadata.version("triton")) < Version("3.7.1")


def width(size: int) -> int:
    """Return the size, rounded up to a multiple of ``COLUMNS``."""
    return -(-size // COLUMNS) * COLUMNS


def pad_last(states: Tensor, size: int) -> Tensor:
    """Pad ``… D`` with zeros to ``… size``."""
    missing = size - states.shape[-1]
    return torch.nn.functional.pad(states, (0, missing)) if missing else states


@dataclass(frozen=True)
class FlatRows:
    """Rows of several documents, concatenated into one row.

    bounds: the first token of each document, and the end of the last one. first, last: the first and the last document of each
    row. continues: whether the first document of a row continues a document of an earlier call.
    """

    bounds: Int[Tensor, " n"]
    first: Int[Tensor, " B"]
    last: Int[Tensor, " B"]
    continues: Bool[Tensor, " B"]

    def states(self, state: Float[Tensor, "B ..."], empty: float = 0.0) -> Tensor:
        """Return the initial state of each document: that of the row for a document that continues, ``empty`` for all
        others."""
        continued = state.masked_fill(~self.continues.view(-1, *[1] * (state.dim() - 1)), empty)
        return state.new_full((self.bounds.shape[0] - 1, *state.shape[1:]), empty).index_copy(0, self.first, continued)

    def final_state(self, states: Float[Tensor, "n ..."]) -> Tensor:
        """Return the final state of each row."""
        return states.index_select(0, self.last)


_remembered_rows: list[tuple[weakref.ref[Tensor], int, FlatRows]] = []
"""The latest results of ``rows``. All layers of a model need the same ones, and computing the bounds waits for the device."""
REMEMBERED = 8


def rows(segment: Int[Tensor, "B T"]) -> FlatRows:
    """Return the documents of these tokens."""
    version = None if segment.is_inference() else segment._version
    for tensor, seen, flat_rows in _remembered_rows:
        if version is not None and tensor() is segment and version == seen:
            return flat_rows
    batch, length = segment.shape
    begins = torch.ones_like(segment, dtype=torch.bool)
    begins[:, 1:] = segment[:, 1:] != segment[:, :-1]
    starts = begins.flatten().nonzero().squeeze(1)
    bounds = torch.cat((starts, starts.new_full((1,), batch * length)))
    of_each = begins.flatten().cumsum(0).view(batch, length) - 1
    flat_rows = FlatRows(bounds, of_each[:, 0], of_each[:, -1], segment[:, 0] == 0)
    if version is not None:  # tensors of inference mode have no version counter
        _remembered_rows[:] = [(weakref.ref(segment), version, flat_rows), *_remembered_rows[: REMEMBERED - 1]]
    return flat_rows


def one_row(states: Float[Tensor, "B T ..."]) -> Float[Tensor, "1 BT ..."]:
    """Concatenate the rows into one."""
    return states.flatten(0, 1)[None]


def to_heads(states: Tensor, heads: int, dtype: torch.dtype, size: int | None = None, dim: int = 2) -> Tensor:
    """Repeat entries for the query heads, convert them to this dtype, and pad them to this size."""
    states = repeat_heads(states.to(dtype), heads, dim=dim)
    return states if size is None else pad_last(states, size)


def pad_state(state: Float[Tensor, "B N F V"], heads: int) -> Tensor:
    """Return the state in the layout of a kernel with this number of heads."""
    rows, columns = (width(size) - size for size in state.shape[2:])
    if rows or columns:
        state = torch.nn.functional.pad(state, (0, columns, 0, rows))
    return to_heads(state, heads, torch.float32, dim=1).contiguous()


def remove_padding(output: Tensor, final_state: Tensor, state: Float[Tensor, "B N F V"]) -> tuple[Tensor, Tensor]:
    """Remove padding from a kernel's output and state. Of query heads that share a state, one returns it. state: the shape
    before."""
    _, state_heads, features, columns = state.shape
    if final_state.shape[1] != state_heads:
        final_state = final_state[:, :: final_state.shape[1] // state_heads]
    if final_state.shape[2] != features:
        final_state = final_state[:, :, :features]
    if final_state.shape[3] != columns:
        output, final_state = output[..., :columns], final_state[..., :columns]
    return output.to(state.dtype), final_state.contiguous()
