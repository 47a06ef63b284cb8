"""The host's rotation equals the host's code, also with positions per head, and can be inverted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from blocks.flow import Tokens
from blocks.positions import HostRotation, NoPosition, Rope

ROPE = Rope(theta=100.0)


@dataclass(frozen=True, eq=False)
class Rotary:
    """``blocks.positions.Rotary`` from two functions."""

    tables: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    apply: Callable[[Tensor, Tensor, Tensor], Tensor]
    by_call: bool = False


def rotary(width: int, factor: float = 1.0, *, neighbours: bool = False) -> Rotary:
    """Rotate the first ``width`` coordinates, in halves or as neighbours, with tables times a factor as in YaRN."""

    def tables(position: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        angle = position[..., None].float() * ROPE.frequencies(width)
        angle = angle.repeat_interleave(2, -1) if neighbours else torch.cat((angle, angle), -1)
        return factor * angle.cos().to(like.dtype), factor * angle.sin().to(like.dtype)

    def apply(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        rotated, rest = states[..., :width], states[..., width:]
        if neighbours:
            crossed = torch.stack((-rotated[..., 1::2], rotated[..., ::2]), -1).flatten(-2)
        else:
            crossed = torch.cat((-rotated[..., width // 2 :], rotated[..., : width // 2]), -1)
        return torch.cat((rotated * cosine[:, :, None] + crossed * sine[:, :, None], rest), -1)

    return Rotary(tables, apply)


def states(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 5, 3, 8, generator=generator, dtype=dtype), torch.arange(3, 8).expand(2, 5)


def test_host_rotation_equals_rope_for_models_with_rope() -> None:
    inputs, position = states()
    own = HostRotation(rotary=rotary(8))
    assert torch.equal(own.rotate(inputs, position), ROPE.rotate(inputs, position))
    assert torch.equal(own.rotate_tokens(inputs, Tokens(position)), ROPE.rotate(inputs, position))
    heads = torch.stack((position, position + 1, position + 7), dim=-1)
    assert torch.equal(own.rotate(inputs, heads), ROPE.rotate(inputs, heads))


@pytest.mark.parametrize("neighbours", [False, True])
@pytest.mark.parametrize("factor", [1.0, 0.7])
@pytest.mark.parametrize("width", [8, 4])
def test_rotate_back_inverts_rotate(width: int, factor: float, neighbours: bool) -> None:
    inputs, position = states()
    own = HostRotation(rotary=rotary(width, factor, neighbours=neighbours))
    torch.testing.assert_close(own.rotate_back(own.rotate(inputs, position), position), inputs, rtol=0, atol=1e-12)
    heads = torch.stack((position, position + 1, position + 7), dim=-1)
    torch.testing.assert_close(own.rotate_back(own.rotate(inputs, heads), heads), inputs, rtol=0, atol=1e-12)


def test_pieces_are_rotated_as_in_the_whole_call() -> None:
    """If angles depend on all positions of a call, a piece uses the angles of the call. Otherwise a piece is a separate call."""
    inputs, position = states()
    how = rotary(8)
    by_call = Rotary(lambda at, like: how.tables(at * int(at.max()), like), how.apply, by_call=True)
    tokens, columns = Tokens(position), slice(0, 2)
    piece = replace(tokens.cut(columns), call=(tokens, columns))
    for rotation in (by_call, how):
        own = HostRotation(rotary=rotation)
        assert torch.equal(own.rotate_tokens(inputs[:, columns], piece), own.rotate_tokens(inputs, tokens)[:, columns])
    own = HostRotation(rotary=by_call)
    assert not torch.equal(
        own.rotate_tokens(inputs[:, columns], tokens.cut(columns)), own.rotate_tokens(inputs, tokens)[:, columns]
    )


def test_rotation_tables_are_computed_once_per_call() -> None:
    inputs, position = states()
    made, how = [], rotary(8)
    own = HostRotation(rotary=Rotary(lambda *arguments: made.append(1) or how.tables(*arguments), how.apply))
    tokens = Tokens(position)
    for _ in range(3):
        own.rotate_tokens(inputs, tokens)
    assert made == [1]


def test_rope_without_theta_uses_the_rotation_of_the_host() -> None:
    how = rotary(8)
    assert Rope().within(how) == HostRotation(rotary=how)
    assert Rope().within(None) == NoPosition()
    assert ROPE.within(how) is ROPE
    assert NoPosition().within(how) == NoPosition()
    assert HostRotation(rotary=how).base != HostRotation(rotary=rotary(8)).base
