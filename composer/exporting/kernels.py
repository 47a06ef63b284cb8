"""The operations of flash-linear-attention (fla) that a file calls on a GPU, beside the form of PyTorch.

A recurrence has the same arguments and results on both backends. Both forms are recorded with the same inputs, as the two branches
of a choice. While the form on fla is recorded, ``Kernel.__call__`` is replaced: kernels of Triton do not run on the device meta.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from inspect import Parameter, signature
from typing import Any

from torch import Tensor

from blocks.kernels import Kernel
from blocks.operation import FLA, Form, Setting
from composer.errors import ExportError
from composer.exporting.call_recording import NARROW, ProgramRecording
from composer.graph.program import Step

ON_A_GPU = Setting("cuda", "bfloat16", padded=True, gradients=True)
"""The setting in which a file calls fla: its kernels do not support float16, and some do not support float32."""


def with_kernel(step: Step, recording: ProgramRecording) -> Step:
    """Return a step whose recurrence is recorded on PyTorch and on fla; the step itself if fla has no form of it."""
    recurrence = _recurrence_of(step.form)
    if recurrence is None or len(step.covers) != 1:
        return step
    node = step.covers[0].node
    setting = ON_A_GPU._replace(shape=node.shape)
    on_fla = (form for form in node.operation.forms if form.backend == FLA and not form.decode and form.obstacle(setting) is None)
    other = next((recurrence_on_fla for form in on_fla if (recurrence_on_fla := _recurrence_of(form)) is not None), None)
    if other is None:
        return step
    both = replace(recurrence, run=partial(_record_both, recording, recurrence.run, other.run))
    return replace(step, form=replace(step.form, run=partial(step.form.run, recurrence=both)))


def _recurrence_of(form: Form) -> Form | None:
    """The form of the recurrence that a memory's form runs."""
    return form.run.keywords.get("recurrence") if isinstance(form.run, partial) else None


def _record_both(
    recording: ProgramRecording, on_torch: Callable[..., Any], on_fla: Callable[..., Any], *inputs: Tensor | None
) -> Any:
    """Record both forms of a recurrence. Return the results of the one that runs."""
    # Kernels multiply in the dtype of the values, which PyTorch's form has in float32.
    names = [name for name, parameter in signature(on_fla).parameters.items() if parameter.kind is not Parameter.KEYWORD_ONLY]
    narrow = [
        partial(tensor.to, NARROW) if name == "value" and tensor is not None else lambda tensor=tensor: tensor
        for name, tensor in zip(names, inputs, strict=True)
    ]
    start = len(recording.calls)
    try:
        with recording.in_branch("kernel"), _record_kernels(recording):
            by_kernel = on_fla(*(convert() for convert in narrow))
    except ExportError:
        del recording.calls[start:]
        return on_torch(*inputs)
    with recording.in_branch("torch"):
        by_torch = on_torch(*inputs)
    return recording.host("", (by_kernel, by_torch), by_torch, kind="choice")


@contextmanager
def _record_kernels(recording: ProgramRecording) -> Iterator[None]:
    """Record calls of kernels in place of running them."""

    def record(kernel: Kernel, *inputs: Any, **options: Any) -> Any:
        likes = options.get("v"), options.get("initial_state")
        if any(like is None for like in likes):
            raise ExportError(f"the results of {kernel.name} are not like its `v` and `initial_state`")
        return recording.host(f"{kernel.module}:{kernel.name}", inputs, likes, kind="kernel", options=options)

    original = Kernel.__call__
    Kernel.__call__ = record  # type: ignore[method-assign]
    try:
        yield
    finally:
        Kernel.__call__ = original  # type: ignore[method-assign]
