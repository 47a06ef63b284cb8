"""Whether a model has positions for as many tokens as it is asked to read."""

from __future__ import annotations

from composer.errors import ComposerError
from converters.trunk import Sizes


def check_positions(
    sizes: Sizes,
    reference: str,
    tokens: int,
    ask: str,
    refusal: type[ComposerError] = ComposerError,
    *,
    more: int = 0,
    of: str = "",
) -> None:
    """Raises ``refusal`` where tokens, and ``more``, exceed a model's table of learned positions. Other kinds have no end.

    reference: the model. ask: the advice that precedes the largest possible number. of: words that say what the tokens are.
    """
    most = sizes.max_positions - more
    if sizes.learns_positions and tokens > most:
        raise refusal(
            f"{reference} has learned {sizes.max_positions:,} positions, too few for {tokens:,} tokens{of}: {ask} {max(most, 0):,}."
        )
