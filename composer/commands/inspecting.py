"""``inspect``: what each head attends to, which memory answers, and what states still know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from composer.arguments import Reference, path_of
from composer.devices import room_for
from composer.errors import InspectionError, in_words
from composer.evaluation.options import SHORTEST
from composer.graph.lowering import AUTO
from composer.inspection.options import LENGTH, ONE_TEXT, QUERIES, InspectOptions
from composer.numbers import Numbers, numbers_of
from composer.progress import BarUpdate, progress_callback, silent_transformers

if TYPE_CHECKING:
    from composer.inspection.findings import Findings
    from composer.model.modeling import ComposedForCausalLM
    from composer.tasks.base import Task


@in_words
def inspect(
    model: Reference | ComposedForCausalLM,
    *,
    text: str | None = None,
    tasks: str | Task | Sequence[str | Task] | None = None,
    length: Numbers = LENGTH,
    layers: Numbers | None = None,
    queries: int = QUERIES,
    teacher: Reference | None = None,
    alone: bool = False,
    seed: int = 0,
    tokenizer: Any = None,
    device: str = "cpu",
    backend: str = AUTO,
    out: Reference | None = None,
    force: bool = False,
    progress: bool | Callable[[str], None] = False,
) -> Findings:
    """Looks into a model on one text, beside its teacher.

    - model: a built or distilled folder; what one can be built from, with softmax in all of its heads then; or a composed model in
      memory, which needs its ``tokenizer``.
    - text: one of your own; or tasks: one that writes it, options behind it (``"passkey,depth=0.5"``); left out, ``"passkey"``.
    - length: tokens of the text at most: one number, since pictures have a column for each token of one text.
    - layers: those to look at, from 0, or from -1 backwards; ``None``: all.
    - queries: so many tokens, evenly spread, are asked what they attend to, those before an answer always.
    - teacher: what to compare with; left out, the source of a student. alone: compare with nothing.
    - out: a folder for a page, pictures and numbers; ``None`` writes nothing. force: replace the report that is there.
    - progress: ``True`` shows a bar; or what is to be called with the name of each group of heads.

    Returns all numbers, which pictures are drawn from. Raises ComposerError.

        composer.inspect("lawcat-mine", tasks="passkey,depth=0.5", length="1k", out="inside")
    """
    lengths = numbers_of(length, "--length", InspectionError, least=SHORTEST)
    if len(lengths) != 1:
        said = ", ".join(map(str, lengths)) or "nothing"
        raise InspectionError(f"--length: {said}; a model is looked at on {ONE_TEXT}: say one number of tokens.")
    options = InspectOptions(
        tasks=() if tasks is None else tuple(tasks) if isinstance(tasks, Sequence) and not isinstance(tasks, str) else (tasks,),
        text=text,
        length=lengths[0],
        seed=seed,
        layers=layers_of(layers),
        queries=queries,
        teacher=None if teacher is None else str(teacher),
        alone=alone,
        device=device,
        backend=backend,
        out=path_of(out),
        force=force,
    )
    options.check()  # report mistakes before imports that take seconds
    with progress_callback(progress, lambda said: BarUpdate("looking", 0, 1, said), "name", "text") as tell:
        from composer.inspection.inspect import inspect as run

        fewer = f"Look at a shorter text (--length, now {lengths[0]:,}), with fewer --queries, or without the teacher: --alone."
        with room_for(f"on {device}", fewer, InspectionError), silent_transformers("error"):
            return run(model, options, tokenizer=tokenizer, tell=tell)


def layers_of(said: Numbers | None) -> tuple[int, ...] | None:
    """Layers as people name them, -1 the last; None: all. Raises InspectionError."""
    return None if said is None else numbers_of(said, "--layers", InspectionError, least=None, thousands=False)
