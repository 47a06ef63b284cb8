"""Compares the tensors in a folder with its plan: names, shapes and types, as the files' headers have them."""

from __future__ import annotations

from pathlib import Path

from composer.graph.rules import checked_graph
from composer.spec.resolve import Resolved
from composer.weights.plan import Plan
from converters.errors import ConverterError
from converters.source import Source, open_source


def problems_of(folder: Path, resolved: Resolved, plan: Plan) -> list[str]:
    """The problems of a folder that was built by ``plan``, one line each; empty where there are none."""
    try:
        built = open_source(folder)
    except ConverterError as error:
        return [str(error)]
    problems = uncovered(built, resolved)
    for name, entry in plan.parameters.items():
        tensor = built.tensors.get(name)
        if tensor is None:
            problems.append(f"{name} is missing")
        elif (tensor.file.name, tensor.shape, tensor.dtype) != (entry.output, entry.shape, entry.dtype):
            problems.append(
                f"{name} is {tensor.dtype} {list(tensor.shape)} in {tensor.file.name}, "
                f"planned as {entry.dtype} {list(entry.shape)} in {entry.output}"
            )
    silent = {own for own, dropped in plan.dropped.items() if own in built.tensors and dropped.shape == built.tensors[own].shape}
    problems += [f"{name} is in no plan" for name in built.tensors if name not in plan.parameters and name not in silent]
    return problems


def uncovered(built: Source, resolved: Resolved) -> list[str]:
    """Parameters of the composed heads that a model lacks, has too many of, or has in another shape.

    The trunk's coverage has been checked when the model was opened. Raises GraphError where the heads mean nothing: whoever wrote
    the document may not have resolved it.
    """
    from composer.spec.parameters import fresh_parameters

    for name, heads in sorted({(group.head, group.heads) for layer in resolved.layers for group in layer}):
        checked_graph(resolved.heads[name], resolved.shape(heads), ("heads", name), idle=True)
    wanted = fresh_parameters(resolved)
    problems = [f"{name} {list(fresh.shape)} is missing" for name, fresh in wanted.items() if name not in built.covered.composed]
    for name in built.covered.composed:
        shape = built.tensors[name].shape
        if name not in wanted:
            problems.append(f"{name} {list(shape)} has no place in the spec")
        elif wanted[name].shape != shape:
            problems.append(f"{name} is {list(shape)}, the spec has {list(wanted[name].shape)}")
    return problems
