"""What chunked recurrences share: tokens cut into spans and chunks, and the decay of a state and between the tokens of a chunk."""

from __future__ import annotations

from blocks.legend import Float, Int, Tensor, torch


def cut_documents(segment: Int[Tensor, "B T"], span: int) -> list[Tensor]:
    """Return the documents of each ``span`` tokens, numbered anew: 0 continues the last document of the tokens before."""
    before = (0, *segment[:, span - 1 : -1 : span, None].unbind(1))
    return [document - last for document, last in zip(segment.split(span, dim=1), before, strict=True)]


def into_chunks(
    states: Float[Tensor, "B T h ..."], count: int, chunk: int, groups: tuple[int, ...], order: tuple[int, ...]
) -> Tensor:
    """``B T h …`` to ``B n c groups… …``, the last chunk filled with zeros, in another order of its dimensions."""
    missing = count * chunk - states.shape[1]
    if missing:
        states = torch.cat((states, states.new_zeros(states.shape[0], missing, *states.shape[2:])), dim=1)
    # Made contiguous once: a product would copy a strided factor in parts, and a transposed one number by number.
    return states.unflatten(2, groups).unflatten(1, (count, chunk)).permute(order).contiguous()


def of_documents(segment: Int[Tensor, "B T"], count: int, chunk: int) -> tuple[Int[Tensor, "B n c"], Int[Tensor, "B n"]]:
    """Return the document of each token, those that fill the last chunk in the last one, and the document before each chunk."""
    missing = count * chunk - segment.shape[1]
    document = torch.cat((segment, segment[:, -1:].expand(-1, missing)), dim=1).unflatten(1, (count, chunk))
    return document, torch.cat((document.new_zeros(document.shape[0], 1), document[:, :-1, -1]), dim=1)


def decay_between(decay: Float[Tensor, "B K n R c ..."]) -> Float[Tensor, "B K n R c c ..."]:
    """Decay after token j up to token i, at [i, j]: summed, since the difference of two long sums would lose what is small."""
    later = torch.ones(decay.shape[4], decay.shape[4], dtype=torch.bool, device=decay.device).tril(-1)
    later = later.view(*later.shape, *[1] * (decay.dim() - 5))
    return torch.where(later, decay.unsqueeze(5), 0.0).cumsum(4)


def decay_state(
    state: Float[Tensor, "B N F V"], log_decay: Tensor | None, segment: Int[Tensor, "B 1"] | None, *, in_place: bool
) -> Float[Tensor, "B N F V"]:
    """Return the state after the token's decay, B 1 N or B 1 N F, and empty where a document starts. in_place: written over. It is
    contiguous."""
    if log_decay is not None:
        decay = log_decay.exp().view(*state.shape[:2], -1, 1)
        state = state.mul_(decay) if in_place else state * decay
    if segment is not None:
        state = state * (segment == 0)[..., None, None]
    return state.contiguous()
