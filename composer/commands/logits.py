"""``logits``: a teacher's logits are written once, for students to learn from without the teacher in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from composer.arguments import Reference, check_known, several
from composer.data.loading import SHARE, check_references
from composer.data.packing import Packing
from composer.devices import check_device, room_for
from composer.errors import TrainingError, in_words
from composer.notices import inform
from composer.numbers import TokenCount, check_count, check_range, check_seed, tokens_of
from composer.progress import BarUpdate, progress_callback, silent_transformers
from composer.spec.recipe import Recipe

if TYPE_CHECKING:
    from composer.training.logits_writing import WrittenLogits

TOP_K, BATCH = 64, 4


@in_words
def logits(
    teacher: Reference,
    data: str | Sequence[str],
    out: Reference,
    *,
    top_k: int = TOP_K,
    temperature: float = 1.0,
    sequence: TokenCount | None = None,
    rows: Packing = "packed",
    held_out: str | Sequence[str] = (),
    share: float = SHARE,
    seed: int = 0,
    batch: int = BATCH,
    device: str = "cpu",
    force: bool = False,
    progress: bool | Callable[[int, int], None] = False,
) -> WrittenLogits:
    """Write a teacher's logits for rows of data. ``distil(…, teacher_logits=out)`` learns from them.

    - out: a folder, where a call that was stopped continues. force: replace the logits that are there.
    - top_k: the number of logits of each token; temperature: of the recipe's ``finetune``.
    - sequence, rows: of the recipe. share, held_out, seed: as ``distil`` has them, so that the rows are the same.
    - batch: rows at a time, on which only speed and memory depend.
    - progress: ``True`` shows a bar; or a function that is called with the numbers of finished rows and of all rows.

    Raises ComposerError.

        composer.logits("teacher", "texts.jsonl", "teacher-logits", top_k=64)
    """
    for option, count in (("--top-k", top_k), ("--batch", batch)):
        check_count(option, count, TrainingError)
    check_range("--temperature", temperature, 0.01, refusal=TrainingError)
    check_known("--rows", rows, get_args(Packing))
    check_seed(seed, TrainingError)
    length = None if sequence is None else tokens_of(sequence, "--sequence", TrainingError, least=2)
    check_references((*several(data), *several(held_out)))
    check_device(device)
    fewer = f"Compute fewer rows at once (--batch, now {batch:,}), or shorter ones (--sequence)."
    with room_for(f"on {device}", fewer, TrainingError), silent_transformers("error"):
        from composer.training.logits_writing import LogitsOptions, write_logits
        from composer.training.run import TrainingOptions
        from composer.training.teacher import open_language_model

        training = TrainingOptions(
            data=several(data), held_out=several(held_out), share=share, seed=seed, device=device, force=force, tell=inform
        )
        with progress_callback(progress, bar_of, "name", "bar", "count", "left") as watch:
            options = LogitsOptions(
                recipe=Recipe(sequence=length, rows=rows), top_k=top_k, temperature=temperature, batch=batch, watch=watch
            )
            return write_logits(open_language_model(str(teacher)), Path(out).expanduser(), training, options)


def bar_of(done: int, total: int) -> BarUpdate:
    """The number of finished rows, as a bar shows it."""
    return BarUpdate("rows", done, total)
