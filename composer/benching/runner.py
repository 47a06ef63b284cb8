"""Run a bench: everything is checked first, then all models are loaded, and alternate at each workload."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from blocks.operation import Setting
from composer.benching.memory import Peaks, can_tell_resident, gauge_allocations, peaks_of
from composer.benching.options import BenchOptions, BenchProgress, read_workloads
from composer.benching.report import PHASES, BenchCell, BenchReport, BenchSetting, TimedModelFacts, Workload, make_cells
from composer.benching.trial import RECORDED, Contestant, Trial, run_trial, run_unmeasured, warm
from composer.errors import BenchError
from composer.graph.lowering import AUTO, list_forms
from composer.model.attention import INTERFACE
from composer.runs.store import RunStore, write_pictures
from composer.spec.resolve import graphs_of
from composer.system.devices import check_device, device_name, device_type, room
from composer.system.versions import versions_of
from composer.weights.config import check_positions
from composer.weights.opened import Opened, check_backends, open_models
from converters.composed import ADAPTER_KEY
from converters.trunk import dtype_name

BENCH = "bench.json"
STORE = RunStore("bench", BenchError, mark=BENCH)
"""A bench is a single run, as times of different hours do not compare. Its files are replaced one by one at the end."""
PACKAGES = ("attention-composer", "torch", "transformers", "peft", "triton", "flash-linear-attention")


def bench(
    models: Sequence[str | Path] | Mapping[str, str | Path],
    prefill: Sequence[int] = (),
    decode: Sequence[int] = (),
    options: BenchOptions | None = None,
    *,
    built: Mapping[str, str] | None = None,
) -> BenchReport:
    """Time every model on every workload, alternately.

    - models: folders that were built or distilled, or sources that a model can be built from; a mapping has their labels as keys.
      The others are compared with the first.
    - prefill: tokens of prompts.
    - decode: positions at which a token is decoded.
    - built: folders that were built for this bench, by path, and their descriptions.

    Raises BenchError, BuildError and SourceError before anything is timed. If memory does not suffice, the report says so.
    """
    options = options or BenchOptions()
    check_device(options.device)
    lengths, positions, batches = read_workloads(prefill, decode, options)
    cuda = options.device.startswith("cuda")
    if options.memory and not cuda and not can_tell_resident():
        raise BenchError(
            "--memory: this system does not report the resident memory of a process (Linux does, in /proc). Leave it out."
        )
    opened = open_models(models, BenchError, options.dtype)
    check_backends(options.backend, opened)
    _check_room(opened, lengths, positions, options.steps + (RECORDED if options.graph and cuda else 0))
    trial = Trial(
        prefill=lengths,
        decode=positions,
        batches=batches,
        repeats=options.repeats,
        steps=options.steps,
        seed=options.seed,
        vocabulary=min(model.source.trunk.vocabulary_size for model in opened),
        device=options.device,
    )
    out = None if options.out is None else options.out.expanduser()
    with nullcontext() if out is None else STORE.hold(out, force=options.force):
        with _threads(options.threads):
            report = _run(opened, trial, options, built or {}, measured_apart=options.memory and not cuda)
        if out is not None:
            STORE.check(out, force=options.force)  # again, for file systems without locks
            write_report(report, out)
    return report


def write_report(report: BenchReport, folder: Path) -> None:
    """Write ``bench.json``, ``table.md``, and a picture of each kind of workload. Raises BenchError."""
    from composer.benching.report import pictures

    with STORE.writing(folder):
        report.write(folder, BENCH)
        write_pictures(partial(pictures, report), folder, [f"{kind}.png" for kind in PHASES])


def _run(
    opened: Sequence[Opened], trial: Trial, options: BenchOptions, built: Mapping[str, str], *, measured_apart: bool
) -> BenchReport:
    workloads = list(trial.workloads())
    cuda, done, total = options.device.startswith("cuda"), 0, len(workloads) * (1 + measured_apart * len(opened))

    def tell(activity: str) -> None:
        nonlocal done
        if options.watch is not None:
            options.watch(BenchProgress(activity, done, total))
        done += 1

    peaks: dict[str, Peaks] = {}
    remarks = [
        f"{model.label}: {built[model.reference]}, built for this bench; its heads are random, on which no time depends."
        for model in opened
        if model.reference in built
    ]
    for model in opened if measured_apart else ():

        def heard(workload: Workload, label: str = model.label) -> None:
            tell(f"memory of {label}, {workload.description}")

        peaks[model.label] = peaks_of_model = peaks_of(model.source.folder, options, trial, heard)
        missing = [workload.description for workload in workloads if workload not in peaks_of_model]
        if missing:
            remarks.append(f"{model.label}: the system ended the process that measures its memory, at {missing[0]}.")
            done += len(missing)
    contestants = [
        Contestant(model.label, model.load(options.dtype, options.device, options.backend), graph=options.graph) for model in opened
    ]
    for model, contestant in zip(opened, contestants, strict=True):
        remarks += _elsewhere(model, contestant.model.dtype, options)
    facts = [_facts(model, contestant.model, options, built) for model, contestant in zip(opened, contestants, strict=True)]
    full = f"The memory of {options.device} is too small for all models at once."
    with room(lambda: BenchError(f"{full} Bench fewer models, or choose a smaller --dtype.")):
        warm(contestants, trial)
    cells: list[BenchCell] = []
    gauge = gauge_allocations(options.device) if cuda else run_unmeasured
    for workload, measured in run_trial(contestants, trial, gauge, lambda workload: tell(workload.description)):
        cells += make_cells(workload, measured, {label: model_peaks.get(workload) for label, model_peaks in peaks.items()})
    setting = BenchSetting(
        models=tuple(facts),
        prefill=trial.prefill,
        decode=trial.decode,
        batches=trial.batches,
        repeats=options.repeats,
        steps=options.steps,
        seed=options.seed,
        device=options.device,
        backend=options.backend,
        graph=options.graph and cuda,
        device_name=device_name(options.device),
        threads=options.threads,
        peak="allocated" if cuda else "resident" if measured_apart else None,
        versions=versions_of(PACKAGES),
    )
    return BenchReport(setting=setting, cells=tuple(cells), remarks=tuple(remarks))


def _elsewhere(model: Opened, dtype: Any, options: BenchOptions) -> Iterator[str]:
    """Yield a remark if parts of a model have no form on the chosen backend."""
    if options.backend == AUTO or model.composed is None:
        return
    setting = Setting(device_type(options.device), dtype_name(dtype))
    parts = [part for graph in graphs_of(model.composed) for part in list_forms(graph, options.backend, setting)]
    backends_of = {part.part: {part.backend, part.decode_backend} - {None, options.backend} for part in parts}
    others = [name for name, backends in backends_of.items() if backends]
    if others:
        backend_names = ", ".join(sorted({str(backend) for backends in backends_of.values() for backend in backends}))
        yield (
            f"{model.label}: {', '.join(others)} ran on {backend_names}, not on {options.backend}; "
            f"run `compose explain --backend {options.backend}` for the reasons."
        )


def _check_room(opened: Sequence[Opened], lengths: Sequence[int], positions: Sequence[int], steps: int) -> None:
    """Raise BenchError if a length exceeds a model's table of learned positions."""
    more = steps + 1
    for model in opened:
        check = partial(check_positions, model.source.trunk, ask="the largest possible value is", refusal=BenchError)
        check(f"--prefill: {model.reference}", max(lengths, default=0))
        check(
            f"--decode: {model.reference}",
            max(positions, default=0),
            more=more,
            purpose=f", with {more:,} more for what is decoded there",
        )


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """For the block, torch uses ``count`` threads of the CPU."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _facts(opened: Opened, loaded: Any, options: BenchOptions, built: Mapping[str, str]) -> TimedModelFacts:
    parameters = list(loaded.parameters())
    facts = opened.facts(options.dtype).model_copy(update={"reference": built.get(opened.reference, opened.reference)})
    return TimedModelFacts(
        **dict(facts),
        parameters=sum(parameter.numel() for parameter in parameters),
        weight_bytes=sum(parameter.nbytes for parameter in parameters),
        attention=INTERFACE if opened.source.is_composed else str(loaded.config._attn_implementation),
        adapter=opened.source.config.get(ADAPTER_KEY) is not None,
    )
