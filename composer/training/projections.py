"""Output projections in closed form: the weights with which a student's heads, as they are, come nearest to the teacher's layers.

Let x_t be the input of a layer's output projection at token t, W₀ its weight, and y_t the output with which the layer passes on the
teacher's hidden states: the teacher's output, and what the input of the student's layer lacks of that of the teacher's. Then

    W = argmin Σ_t |W x_t - y_t|² / m_t + s · g · |W - W₁|²,    g = tr(Σ_t x_t x_tᵀ / m_t) / d

m_t is the mean square of the teacher's hidden state after the attention: the next norm divides by its root. Without it, a few
tokens with very large states decide everything. W₁ is W₀ behind a matrix for each head, which brings the head's output near that of
the teacher's by the same kind of sum: so many fewer numbers are found from few tokens. Each s has the smallest error on rows that
were left out. A layer whose error would not fall there keeps W₀. Layers are solved from the first to the last in one pass, and each
sees the solved ones below it. d is the width of x.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from composer.data.packing import Batch
from composer.errors import TrainingError
from composer.model.attention import ComposedAttention, unpack_output
from composer.model.hosts import attentions, layers_of
from composer.model.modeling import ComposedForCausalLM
from composer.spec.recipe import Transfer
from composer.training.calibration import SOLVED_TOKENS, first_rows
from composer.training.loop import counter_of
from composer.training.model_on_disk import StoredModel
from composer.training.processes import is_first, within
from composer.training.transfer import output_projection
from composer.weights.record import Solved, Start

if TYPE_CHECKING:
    from composer.training.run import TrainingRun

PENALTIES = tuple(10 ** (exponent / 2) for exponent in range(-6, 5))
"""The penalties that are tried, as shares of the mean square of a coordinate of x."""
AS_EXACT = 1e-9
"""The share of the teacher's mean square up to which an error is that of rounding, which is not solved for."""
AS_SUM = 1e-3
"""The error, relative to the attention's part, up to which hidden states count as the sum of a layer's input and its attention."""
PROJECTIONS = "projections"
"""Their solution, in reports of progress."""
BLOCK = 4096
"""Tokens whose float32 products are summed before they are added in float64."""


@dataclass
class Lesson:
    """What a layer of the teacher computes on the rows."""

    inputs: Tensor
    """The input of the layer, B T C."""
    heads: Tensor
    """The input of its output projection, B T d."""
    outputs: Tensor
    """The output of that projection, B T C."""
    factor: float = 0.0
    """The hidden states after the attention are ``inputs + factor · outputs``. 0: the layer combines them in another way."""

    def target(self, inputs: Tensor) -> Tensor:
        """Return the wanted output for the student's input of the layer."""
        return self.outputs + (self.inputs - inputs) / self.factor if self.factor else self.outputs

    def mean_squares(self) -> Tensor:
        """Return the mean square of each token's hidden state after the attention, or of the output where that is unknown; B T."""
        states = self.inputs + self.factor * self.outputs if self.factor else self.outputs
        return states.square().mean(-1)


Projections = tuple[dict[str, Tensor], list[Solved]]
"""The solved parameters by their names, and a report of each layer."""


class Sums(NamedTuple):
    """Sums over tokens, of inputs x and errors e: x xᵀ (d × d), x eᵀ (d × C), |e|²; and |y|² of the targets."""

    gram: Tensor
    right: Tensor
    error: Tensor
    size: Tensor


def solve_after(
    run: TrainingRun, stage: Transfer, start: Start | None, layers: int, solve_all: Callable[[Callable[[], None]], Projections]
) -> tuple[Start | None, dict[str, Tensor]]:
    """Solve the output projections after a transfer, if it sets so and no stage has trained them. Return its start, with their
    report, and the projections by their names.

    layers: with attention. solve_all: receives a function to call after each of them.
    """
    if stage.start != "solved" or run.student.has_trained_trunk:
        return start, {}
    began = time.monotonic()
    if is_first():
        run.options.tell("Solving the output projections.")
    solved, reports = solve_all(counter_of(PROJECTIONS, layers, run.options.watch))
    before = Start(calibrated=(), kept=(), seconds=0.0) if start is None else start
    return before.model_copy(update={"solved": tuple(reports), "seconds": before.seconds + time.monotonic() - began}), solved


def check_tokens(run: TrainingRun, stage: Transfer, name: str, attention: ComposedAttention) -> None:
    """Raise TrainingError, before the first step, if the rows to solve from have too few tokens for an attention of this name."""
    width = attention.facts.heads * attention.facts.value_dim
    tokens = int(run.rows.valid[first_rows(run.rows, SOLVED_TOKENS, run.options.seed)].sum())
    if stage.start == "solved" and not run.student.has_trained_trunk and tokens < min(width, SOLVED_TOKENS // 2):
        raise TrainingError(
            f"The rows to start from have {tokens:,} tokens, and the output projection of {name} has {width:,} inputs. Add data, "
            "set a larger recipe.sequence, or leave the projections as they are: recipe.transfer.start: calibrated"
        )


def solve_in_memory(
    student: ComposedForCausalLM, teacher: ComposedForCausalLM, batch: Batch, advance: Callable[[], None] = lambda: None
) -> Projections:
    """Solve the output projections of all layers, in place. Raises TrainingError.

    The hidden states and outputs of all of the teacher's layers are in memory meanwhile. advance: called after each layer.
    """
    changed, reports = dict[str, Tensor](), list[Solved]()
    with ExitStack() as hooks:
        layers = layers_of(teacher.base)[1]
        lessons = {
            attention.layer: hooks.enter_context(recording(layers[attention.layer], attention))
            for _, attention in attentions(teacher)
        }
        within(teacher, _run, batch)
    with ExitStack() as hooks:
        layers = layers_of(student.base)[1]
        for name, attention in attentions(student):
            solving = solving_layer(
                name, layers[attention.layer], attention, lessons[attention.layer], batch.valid, changed, reports
            )
            hooks.callback(layers[attention.layer].register_forward_hook(lambda *_: advance()).remove)
            hooks.enter_context(solving)
        within(student, _run, batch)
    return changed, reports


@torch.no_grad()
def _run(model: ComposedForCausalLM, batch: Batch) -> None:
    model.base(**batch.inputs(mask=True), use_cache=False)


@torch.no_grad()
def solve_streamed(
    student: StoredModel, teacher: StoredModel, batch: Batch, learned: Mapping[str, Tensor], advance: Callable[[], None]
) -> Projections:
    """Solve the output projections of a model on disk, with one layer of each model in memory. Results are those of
    ``solve_in_memory``. learned: the parameters that differ from the student's files, by their names. Raises TrainingError.
    """
    changed, reports = dict[str, Tensor](), list[Solved]()
    (taught, their_options), (hidden, our_options) = teacher.layer_inputs(batch), student.layer_inputs(batch)
    for index in range(teacher.trunk.layers):
        theirs, ours = teacher.layer(index), student.layer(index)
        with ExitStack() as hooks:
            if index in student.with_attention:
                name, (_, attention) = student.name_of(index), next(attentions(ours))
                for parameter_name, parameter in attention.named_parameters():
                    if f"{name}.{parameter_name}" in learned:
                        parameter.copy_(learned[f"{name}.{parameter_name}"])
                lesson = hooks.enter_context(recording(theirs, next(attentions(theirs))[1]))
                hooks.enter_context(solving_layer(name, ours, attention, lesson, batch.valid, changed, reports))
            taught = unpack_output(theirs(taught, **their_options[index]))
            hidden = unpack_output(ours(hidden, **our_options[index]))
        if index in student.with_attention:
            advance()
    return changed, reports


@contextmanager
def recording(layer: nn.Module, attention: ComposedAttention) -> Iterator[Lesson]:
    """Fill the yielded lesson while the teacher's layer runs within the block."""
    lesson = Lesson(torch.empty(0), torch.empty(0), torch.empty(0))

    def on_entry(_: nn.Module, arguments: Any, options: Any) -> None:
        lesson.inputs = _first(arguments, options)

    def on_output(_: nn.Module, arguments: Any, output: Any) -> None:
        lesson.heads, lesson.outputs = arguments[0], unpack_output(output)

    def on_child(_: nn.Module, arguments: Any, options: Any) -> None:
        if not lesson.factor and lesson.outputs.numel():
            with suppress(StopIteration):
                lesson.factor = _factor(lesson, _first(arguments, options))

    with ExitStack() as handles:
        handles.callback(layer.register_forward_pre_hook(on_entry, with_kwargs=True).remove)
        projection = output_projection(attention) or attention
        handles.callback(projection.register_forward_hook(on_output).remove)
        for child in layer.children():
            handles.callback(child.register_forward_pre_hook(on_child, with_kwargs=True).remove)
        yield lesson


def _first(arguments: Any, options: Any) -> Tensor:
    """Return the first tensor among the arguments of a module. Raises StopIteration without any."""
    return next(value for value in (*arguments, *options.values()) if isinstance(value, Tensor)).detach()


def _factor(lesson: Lesson, states: Tensor) -> float:
    """Return the factor of the attention's output in hidden states that are its sum with the layer's input; 0 if they are not."""
    if states.shape != lesson.inputs.shape:
        return 0.0
    part, outputs = (states - lesson.inputs).double(), lesson.outputs.double()
    factor = float((part * outputs).sum() / outputs.square().sum().clamp(min=torch.finfo(torch.float64).tiny))
    is_sum = (part - factor * outputs).norm() <= AS_SUM * part.norm()
    return factor if bool(is_sum) and factor else 0.0


@contextmanager
def solving_layer(
    name: str,
    layer: nn.Module,
    attention: ComposedAttention,
    lesson: Lesson,
    valid: Tensor,
    changed: dict[str, Tensor],
    reports: list[Solved],
) -> Iterator[None]:
    """Solve the output projection of a student's layer as the layer runs within the block, just before the projection does.

    name: the full name of the attention. valid: which tokens are no padding, B T. changed, reports: what the block adds to.
    """
    projection = output_projection(attention)
    weight = _weight(projection)
    if projection is None or weight is None:
        yield
        return
    inputs = list[Tensor]()
    full = f"{name}.{next(module_name for module_name, module in attention.named_modules() if module is projection)}.weight"

    def on_entry(_: nn.Module, arguments: Any, options: Any) -> None:
        inputs.append(_first(arguments, options))

    def on_heads(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        if shared := [other for other, tensor in changed.items() if tensor is weight]:
            raise TrainingError(
                f"{name} has the output projection {shared[0]}, too, so they cannot be solved one by one. Leave the projections as "
                "they are: recipe.transfer.start: calibrated"
            )
        heads, target = arguments[0].detach(), lesson.target(inputs[0])
        error = target - projection.forward(heads)  # without this hook
        size = attention.facts.value_dim
        halves, by_head = list[Sums](), list[list[Sums]]()
        roots = lesson.mean_squares().clamp(min=torch.finfo(torch.float32).tiny).rsqrt()[..., None]
        for half in _halves(valid):
            x, e, y, t = ((roots * tensor.float())[half & valid] for tensor in (heads, error, target, lesson.heads))
            halves.append(_sums(x, e, y))
            by_head.append(
                [_sums(ours, theirs - ours, theirs) for ours, theirs in zip(x.split(size, 1), t.split(size, 1), strict=True)]
            )
        if not all(bool(torch.isfinite(part).all()) for half in halves for part in half):
            raise TrainingError(f"{name}: hidden states are not finite, so its output projection cannot be solved.")
        is_transposed = not isinstance(projection, nn.Linear)  # GPT-2's weights are inputs × outputs
        difference, before, after = solve(halves, by_head, (weight if is_transposed else weight.T).double())
        reports.append(Solved(layer=attention.layer, before=before, after=after))
        if difference is not None:
            weight.add_((difference if is_transposed else difference.T).to(weight.dtype))
            changed[full] = weight

    with ExitStack() as handles:
        handles.callback(layer.register_forward_pre_hook(on_entry, with_kwargs=True).remove)
        handles.callback(projection.register_forward_pre_hook(on_heads).remove)
        yield


def _weight(projection: nn.Module | None) -> Tensor | None:
    weight = getattr(projection, "weight", None)
    return weight if isinstance(weight, nn.Parameter) and weight.dim() == 2 else None


def _halves(valid: Tensor) -> tuple[Tensor, Tensor]:
    """Return the tokens of two halves of the rows, B T: every second row, or the halves of a single row."""
    rows, length = valid.shape
    first = torch.zeros_like(valid)
    if rows > 1:
        first[::2] = True
    else:
        first[:, : length // 2] = True
    return first, ~first


def _sums(inputs: Tensor, errors: Tensor, targets: Tensor) -> Sums:
    """Return the sums over n weighed tokens: n d, n C and n C."""
    width, columns = inputs.shape[1], errors.shape[1]
    gram, right = (inputs.new_zeros(width, size, dtype=torch.float64) for size in (width, columns))
    for x, e in zip(inputs.split(BLOCK), errors.split(BLOCK), strict=True):
        gram += x.T @ x
        right += x.T @ e
    return Sums(gram, right, errors.double().square().sum(), targets.double().square().sum())


def solve(halves: Sequence[Sums], by_head: Sequence[Sequence[Sums]], weight: Tensor) -> tuple[Tensor | None, float, float]:
    """Return W - W₀, d × C, and the errors on rows that were left out, before and after, as shares of the targets' squares. None:
    the weight stays, as the error is that of rounding, or would not fall.

    halves: the sums over two halves of the rows. by_head: for each half, those of each head's output. weight: W₀, d × C.
    """
    total = _add(halves)
    before = float(total.error / total.size) if float(total.size) else 0.0
    if before <= AS_EXACT:
        return None, before, before
    mixed = [ridge(head)[0] for head in zip(*by_head, strict=True)]
    parts = zip(mixed, weight.split([len(matrix) for matrix in mixed]), strict=True)
    first = torch.cat([matrix @ columns for matrix, columns in parts])  # W₁ - W₀
    difference, error = ridge([_behind(half, first) for half in halves])
    after = error / float(total.size)
    return (first + difference, before, after) if after < before else (None, before, before)


def ridge(halves: Sequence[Sums]) -> tuple[Tensor, float]:
    """Return the matrix D, d × C, with the least |x D - e|² + s g |D|², and the error on the half of the rows that is left out. D
    is 0 if no penalty s makes this error smaller."""
    total = _add(halves)
    unit = total.gram.diagonal().mean()
    nothing, unsolved = torch.zeros_like(total.right), float(total.error)
    if not float(unit):
        return nothing, unsolved
    errors = torch.zeros(len(PENALTIES), dtype=torch.float64, device=unit.device)
    for half in halves:
        # With the eigenvectors V of the other half's sums, each penalty's error on this half costs d² operations.
        values, vectors = torch.linalg.eigh((total.gram - half.gram) / unit)
        right = vectors.T @ (total.right - half.right) / unit
        along = (right * (vectors.T @ half.right)).sum(1)
        products = (vectors.T @ half.gram @ vectors) * (right @ right.T)
        for index, penalty in enumerate(PENALTIES):
            factors = 1 / (values.clamp(min=0) + penalty)
            errors[index] += half.error - 2 * (factors * along).sum() + factors @ products @ factors
    best = int(errors.argmin())
    if float(errors[best]) >= unsolved:
        return nothing, unsolved
    system = total.gram + PENALTIES[best] * unit * torch.eye(len(total.gram), dtype=torch.float64, device=unit.device)
    return torch.linalg.solve(system, total.right), float(errors[best])


def _add(halves: Sequence[Sums]) -> Sums:
    return Sums(*(torch.stack(parts).sum(0) for parts in zip(*halves, strict=True)))


def _behind(sums: Sums, matrix: Tensor) -> Sums:
    """Return the sums with the errors that are left after x · matrix has been subtracted."""
    projected = sums.gram @ matrix
    error = sums.error - 2 * (matrix * sums.right).sum() + (matrix * projected).sum()
    return sums._replace(right=sums.right - projected, error=error)
