"""A causal filter over tokens: each coordinate is a weighted sum of itself over the last tokens of its document."""

from __future__ import annotations

from collections.abc import Callable

from blocks.fla_kernels import kernel, one_row, rows
from blocks.flow import Tokens
from blocks.kernels import gpu_obstacle
from blocks.legend import Float, Tensor, torch
from blocks.operation import Setting
from blocks.tensors import as_dtype, derives_by_hand, repeat_heads

Filtering = Callable[..., tuple["Tensor", "Tensor"]]


def filter_inputs(
    inputs: Float[Tensor, "B T h D"],
    weight: Float[Tensor, "w D kernel"],
    tokens: Tokens,
    earlier: Float[Tensor, "B P h D"],
) -> tuple[Tensor, Tensor]:
    """Return the filtered inputs, and the last ``kernel - 1`` inputs, which are ``earlier`` of the next call.

    The last tap is the current token's. The inputs' heads or the filters' are repeated, whichever are fewer.
    """
    length, past = inputs.shape[1], earlier.shape[1]
    extended = torch.cat((earlier, inputs), dim=1)
    segment = tokens.extend_segment(past)
    # Laid out tap by tap: a product reads numbers that lie side by side twice as fast.
    taps = weight.to(inputs.dtype).permute(2, 0, 1).contiguous()
    if (inputs.requires_grad or weight.requires_grad) and derives_by_hand(inputs):
        from blocks.gradients import filter_tokens

        seen = None
        if segment is not None:
            seen = torch.stack([segment[:, first : first + length] == segment[:, past:] for first in range(taps.shape[0])])
        output = filter_tokens(extended, taps, seen)
    else:
        output = _tap_by_tap(extended, taps, segment, length)
    carried = tokens.tail(extended, past)
    current = tokens.tail_is_current(past)
    return output, carried if current is None else carried * current[..., None, None]


def _tap_by_tap(extended: Tensor, taps: Tensor, segment: Tensor | None, length: int) -> Tensor:
    """Sum the products of each tap with the entries that it sees. The last tap sees the current token."""
    past, heads, output = extended.shape[1] - length, max(extended.shape[2], taps.shape[1]), None
    taps = repeat_heads(taps, heads, dim=1)
    for first, tap in enumerate(taps):
        seen = extended[:, first : first + length]
        if segment is not None:
            seen = seen * (segment[:, first : first + length] == segment[:, past:])[..., None, None]
        seen = repeat_heads(seen, heads)
        output = seen * tap if output is None else output.addcmul_(seen, tap)
    assert output is not None, "a kernel has at least the current token's tap"
    return output


def filter_step(
    inputs: Float[Tensor, "B 1 h D"], weight: Float[Tensor, "w D kernel"], _: Tokens, earlier: Float[Tensor, "B P h D"]
) -> tuple[Tensor, Tensor]:
    """Filter one token, of the document that the earlier tokens belong to: all taps at once."""
    extended, taps = torch.cat((earlier, inputs), dim=1), as_dtype(weight, inputs.dtype).permute(2, 0, 1)
    heads, filters = inputs.shape[2], weight.shape[0]
    if heads == filters:
        output = (extended * taps).sum(1, keepdim=True)
    else:
        shared = min(heads, filters)
        past, batch, size = extended.shape[1], *inputs.shape[::3]
        products = extended.view(batch, past, shared, -1, size) * taps.view(past, shared, -1, size)
        output = products.sum(1).view(batch, 1, -1, size)
    return output, extended[:, 1:]


CONVOLUTION = kernel("modules.causal_conv1d", "causal_conv1d")
MOST_TAPS = 8


def filter_by_kernel(
    inputs: Float[Tensor, "B T h D"],
    weight: Float[Tensor, "w D kernel"],
    tokens: Tokens,
    earlier: Float[Tensor, "B P h D"],
) -> tuple[Tensor, Tensor]:
    """Filter the tokens in one pass, by fla's kernel. The earlier inputs are placed before those of the call, and their outputs are
    discarded."""
    past = earlier.shape[1]
    extended = torch.cat((earlier, inputs), dim=1)
    heads = max(weight.shape[0], inputs.shape[2])
    seen = repeat_heads(extended, heads).flatten(2)
    taps = repeat_heads(weight.to(inputs.dtype), heads, dim=0).flatten(0, 1)
    segment = tokens.extend_segment(past)
    if segment is None:
        output, _ = CONVOLUTION(seen, taps, activation=None)
    else:
        segment = tokens.once(("extended", past), lambda: segment)
        output, _ = CONVOLUTION(one_row(seen), taps, activation=None, cu_seqlens=rows(segment).bounds)
        output = output.unflatten(1, segment.shape).squeeze(0)
    carried = tokens.tail(extended, past)
    current = tokens.tail_is_current(past)
    output = output[:, past:].unflatten(2, (heads, -1))
    return output, carried if current is None else carried * current[..., None, None]


def obstacle(setting: Setting, taps: int) -> str | None:
    """Return why a form that calls the kernel cannot run, or None. taps: tokens in a filter."""
    if taps > MOST_TAPS:
        return f"its kernel unrolls its taps, of which there are {taps}"
    return gpu_obstacle(setting) if not setting.one_token else "its kernel is for several tokens"
