"""Operations on tensors that several parts use: dtypes, norms and heads, and whether Python may read a tensor's numbers."""

from __future__ import annotations

from blocks.legend import Bool, Float, Int, Shaped, Tensor, torch


def has_numbers(tensor: Tensor) -> bool:
    """True if Python can read the tensor's numbers. There are none in a compiler's graph, in PyTorch's fake tensors, and on the
    device "meta"."""
    return type(tensor) is torch.Tensor and not tensor.is_meta and not torch.compiler.is_compiling()


def as_bool(condition: bool) -> bool:
    """Return a symbolic bool as a Python bool. This specialises the compiled graph on its value."""
    return True if condition else False  # noqa: SIM210


def may_read_numbers(tensor: Tensor) -> bool:
    """True if Python can read the tensor's numbers without waiting for a device."""
    return tensor.is_cpu and type(tensor) is torch.Tensor and not torch.compiler.is_compiling()


def is_nowhere(condition: Bool[Tensor, "*rest"]) -> bool:
    """True if the condition is known to hold nowhere. False also if Python may not read it. The method of an exported file for one
    token computes what follows if this is True, and leaves other tokens to the method for any number."""
    return may_read_numbers(condition) and not bool(condition.any())


def derives_by_hand(tensor: Tensor) -> bool:
    """True if a form with written-out gradients computes this call: gradients are on, and the tensor is on a CPU. Such forms
    compute many small products, which are slow on a GPU, and a compiler cannot trace them."""
    return torch.is_grad_enabled() and may_read_numbers(tensor)


def all_present(position: Int[Tensor, "B S"] | Int[Tensor, "B S K"]) -> bool:
    """True if all entries are known to be pairs. False also if Python may not read the positions."""
    return may_read_numbers(position) and int(position.min()) >= 0


def accumulating(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of sums: float32, or float64 if the model is in float64."""
    return dtype if dtype.itemsize >= 4 else torch.float32


def slot_dtypes(dtype: torch.dtype) -> dict[str, torch.dtype]:
    """Return the dtypes of the tensors of a state in a model of this dtype, by the ``dtype`` of their ``Slot``."""
    return {"pairs": dtype, "state": accumulating(dtype), "int64": torch.int64}


def least_mass(dtype: torch.dtype) -> float:
    """Return the smallest sum that counts as a mass. It is above 0, since the gradient of a quotient divides by the square of the
    mass."""
    return 1e8 * torch.finfo(dtype).tiny


def as_dtype(states: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the states in a dtype. If they have it already, ``to`` is not called: the call is slower than the comparison."""
    return states if states.dtype == dtype else states.to(dtype)


def affine(
    states: Float[Tensor, "*rest C"], weight: Float[Tensor, "n C"], bias: Float[Tensor, " n"] | None, dtype: torch.dtype
) -> Float[Tensor, "*rest n"]:
    """Return x Wᵀ + b in ``dtype``. The product is computed in the weight's dtype; the bias may be wider."""
    states = as_dtype(states, weight.dtype)
    if bias is None or bias.dtype == weight.dtype:
        return as_dtype(torch.nn.functional.linear(states, weight, bias), dtype)
    return torch.nn.functional.linear(states, weight).to(dtype).add_(bias.to(dtype))


def with_ones(value: Float[Tensor, "B E K V"]) -> Float[Tensor, "B E K V+1"]:
    """Return the values with an appended 1, whose sum is the mass."""
    return torch.nn.functional.pad(value, (0, 1), value=1.0)


def take(states: Shaped[Tensor, "B E ..."], index: Int[Tensor, "B M"]) -> Shaped[Tensor, "B M ..."]:
    """Return each row's entries at ``index``."""
    # Whole entries are copied, where a gather would look each number up.
    return states.flatten(0, 1).index_select(0, in_all_rows(index, states.shape[1]).flatten()).unflatten(0, index.shape)


def last_entries(extended: Shaped[Tensor, "B E ..."], valid: Bool[Tensor, "B T"] | None, count: int) -> Shaped[Tensor, "B n ..."]:
    """Return the last ``count`` entries up to each row's last real one, of ``count`` earlier entries and those of the call."""
    if valid is None:
        return extended[:, extended.shape[1] - count :]
    return take(extended, valid.sum(1)[:, None] + torch.arange(count, device=extended.device))


def where_present(
    entries: Shaped[Tensor, "B E ..."], present: Bool[Tensor, "B E"] | Bool[Tensor, "B E K"], absent: float
) -> Shaped[Tensor, "B E ..."]:
    """Return the entries, with ``absent`` in the place of those that are not present."""
    return entries.masked_fill(~present.view(*present.shape, *[1] * (entries.dim() - present.dim())), absent)


def in_all_rows(index: Int[Tensor, "B M"], entries: int) -> Int[Tensor, "B M"]:
    """Return the indices of each row's entries in all rows laid end to end, of ``entries`` each."""
    return index + entries * torch.arange(index.shape[0], device=index.device)[:, None]


def repeat_heads(states: Tensor, heads: int, dim: int = 2) -> Tensor:
    """Repeat each key head's entry for its query heads: ``B T K ...`` to ``B T H ...``, head h from h // (H // K). dim: that of
    heads."""
    return states if states.shape[dim] == heads else states.repeat_interleave(heads // states.shape[dim], dim=dim)


def rows(states: Float[Tensor, "B T H x"], tokens: slice, heads: int) -> Float[Tensor, "Bh c x"]:
    """Return these tokens as the rows of matrix products, one matrix for each of ``heads`` heads of each text. Where there are more
    heads in ``states``, the rows of those that share one of ``heads`` follow each other."""
    tokens_of_heads = states[:, tokens].unflatten(2, (heads, -1)).permute(0, 2, 3, 1, 4)
    return tokens_of_heads.reshape(states.shape[0] * heads, -1, states.shape[-1])


def put_rows(into: Float[Tensor, "B T H x"], tokens: slice, products: Float[Tensor, "Bh c x"]) -> None:
    """Write what ``rows`` has laid out into these tokens."""
    tokens_of_heads = products.view(into.shape[0], into.shape[2], -1, products.shape[-1])
    into[:, tokens].copy_(tokens_of_heads.transpose(1, 2))
