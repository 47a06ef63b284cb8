"""``select``: which layers of a source should keep their own attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from composer.api import SpecLike, build_folder, loaded_spec, resolve_spec
from composer.commands.arguments import Reference, check_known, check_range, several
from composer.commands.training import distil
from composer.data.loading import SHARE
from composer.errors import SelectionError, in_words
from composer.graph.lowering import AUTO
from composer.progress import without_theirs
from composer.selection.choice import candidates
from composer.selection.report import By
from composer.training.student import read_student, stages_of
from composer.weights.dimensions import dimensions
from composer.weights.record import read_record
from composer.weights.sources import describe_model

if TYPE_CHECKING:
    from composer.selection.report import Selection
    from composer.training.loop import StepProgress

ROWS = 16
"""Held-out rows to score on; each goes twice through the model for each of its layers."""
SEQUENCE = 4096


@in_words
def select(
    spec: SpecLike,
    source: Reference,
    data: str | Sequence[str],
    out: Reference,
    *,
    keep: int | None = None,
    budget: int | None = None,
    sequence: int = SEQUENCE,
    by: By = "restored",
    rows: int = ROWS,
    held_out: str | Sequence[str] = (),
    share: float = SHARE,
    overrides: Sequence[str] = (),
    seed: int = 0,
    device: str = "cpu",
    backend: str = AUTO,
    force: bool = False,
    progress: bool | Callable[[StepProgress], None] = False,
    tell: Callable[[str], None] = lambda said: None,
) -> Selection:
    """Scores each layer of a source by what its own attention is worth in a student, and writes a spec that keeps the best.

    The student is built from ``source`` with the spec's heads in every layer, and learns the source's attention as the spec's
    recipe says (``transfer``); it stays in ``out/student``. The spec is ``out/spec.yaml``, to be built and distilled in full.

    - keep: how many layers; or budget: bytes of state at ``sequence`` tokens, and as many layers as they allow.
    - by: the score, ``"restored"``, ``"swapped"`` or ``"error"``. rows: of the held-out data, to score on at most.
    - data, held_out, share, seed, device, backend: as ``distil`` has them. overrides: of the spec and its recipe.
    - force: replace the selection that stands at ``out``; a student there of the same spec does not learn again.
    - progress: ``True`` shows a bar; or what is to be called after each step of training. tell: called with messages.

    Raises ComposerError.

        composer.select("lawcat", "teacher", "texts.jsonl", "selected", keep=4).keep
    """
    check_known("by", by, get_args(By))
    check_range("rows", rows, 1)
    if (keep is None) == (budget is None):
        raise SelectionError("Say how many layers to keep, or how many bytes the state may take: --keep N, or --budget BYTES.")
    if keep is not None:
        check_range("keep", keep, 1)
    loaded, folder = loaded_spec(spec, overrides), Path(out).expanduser()
    resolved = resolve_spec(loaded, dimensions(describe_model(source).trunk))  # a mistake is told before seconds of imports
    most = len(candidates(resolved))
    if keep is not None and keep > most:
        raise SelectionError(f"--keep {keep}: {most} layers of {loaded.name} have other heads than the source; keep fewer.")
    from composer.selection.runner import BUILT, STUDENT, SelectionOptions, select_layers, selection_folder
    from composer.training.run import TrainingOptions

    with selection_folder(folder, force=force), without_theirs():
        student = folder / STUDENT
        record = read_record(student) if student.is_dir() else None
        if record is None or record.spec_hash != resolved.hash:
            build_folder(loaded, source, folder / BUILT, seed=seed, force=True)
            asked = read_student(folder / BUILT, ())
            stages_of(asked.record, asked.recipe, "transfer")
            resume = (folder / f"{STUDENT}.run").is_dir()
            distil(
                folder / BUILT,
                data,
                student,
                held_out=held_out,
                share=share,
                stage="transfer",
                seed=seed,
                device=device,
                backend=backend,
                resume=resume,
                force=not resume,
                progress=progress,
                tell=tell,
            )
        training = TrainingOptions(
            data=several(data), held_out=several(held_out), share=share, seed=seed, device=device, backend=backend, tell=tell
        )
        options = SelectionOptions(keep=keep, budget=budget, sequence=sequence, by=by, rows=rows)
        return select_layers(loaded, student, folder, training, options)
