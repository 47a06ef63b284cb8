"""Stage 2 trains the chosen parameters on the stated losses, and its adapters give the same model wherever they are loaded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tests.interpreter  # noqa: F401
from blocks.kernels import Kernel, Refused
from composer.data.packing import Batch
from composer.model.modeling import ComposedForCausalLM
from composer.spec.recipe import Finetune, Lora
from composer.system.notices import FallsBack
from composer.training.finetune import (
    ENTROPY,
    FinetuneCourse,
    add_adapters,
    divergence,
    finetune_unit,
    fold_adapters,
    loss_of,
    next_token_losses,
    why_not_fused,
)
from tests.composer.training.by_hand import documents
from tests.composer.training.runs import gradients, rows_of, small_llama, student_of, whole

LORA = {"rank": 2, "alpha": 3.0}


def finetune(**changes: Any) -> Finetune:
    return Finetune(**{"lr": 0.01, "steps": 1, **changes})


def course_of(student: ComposedForCausalLM, teacher: nn.Module | None = None, **changes: Any) -> FinetuneCourse:
    stage = finetune(**changes)
    if stage.lora is not None:
        add_adapters(student, stage.lora, 0)
    return FinetuneCourse(student, finetune_unit(student, stage), stage, teacher)


def loss(course: FinetuneCourse, batch: Batch) -> float:
    return float(course.compute_losses(batch, course.count(batch))["model"])


def stirred(student: ComposedForCausalLM) -> None:
    """Return adapters with an effect."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in student.named_parameters():
            if ".lora_" in name:
                parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))


@torch.no_grad()
def logits_of_documents(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return logits and targets of the learned tokens, with each document in a separate call."""
    logits, targets = [], []
    for row, start, end in documents(batch):
        own = model(batch.ids[row, start:end][None], use_cache=False).logits[0, :-1]
        own_labels = batch.labels[row, start + 1 : end]
        logits.append(own[own_labels != -100])
        targets.append(own_labels[own_labels != -100])
    return torch.cat(logits), torch.cat(targets)


@pytest.mark.parametrize("how", ["packed", "padded"])
def test_the_next_token_loss_equals_that_of_transformers(how: Any) -> None:
    student, batch = student_of(small_llama()), whole(rows_of(how=how))
    course = course_of(student)
    logits, targets = logits_of_documents(student, batch)
    by_hand = -logits.log_softmax(-1).gather(1, targets[:, None]).mean().item()
    assert course.count(batch) == len(targets)
    assert loss(course, batch) == pytest.approx(by_hand, rel=1e-6)
    with torch.no_grad():
        own = student(**batch.inputs(), labels=batch.labels, use_cache=False).loss.item()
    assert loss(course, batch) == pytest.approx(own, rel=1e-6)
    assert loss_of(student, rows_of(how=how), 2) == pytest.approx(own, rel=1e-6)
    total = course.count(batch)
    assert float(course.compute_gradients(batch, total)["model"]) == pytest.approx(own, rel=1e-6)


def test_rows_may_have_equal_weight() -> None:
    """Padded rows have different numbers of targets. The loss is the mean of the rows' means, in one batch or in parts,
    distilled or not.
    """
    source = small_llama()
    student, rows = student_of(source), rows_of(how="padded")
    batch = whole(rows)
    assert len({int((row != -100).sum()) for row in batch.labels}) > 1
    with torch.no_grad():
        means = [student(**batch.inputs(), labels=batch.labels, use_cache=False).loss.item() for batch in rows.in_order(1)]
    by_hand, course = sum(means) / len(means), course_of(student, average="rows")
    assert course.count(batch) == len(rows)
    assert loss(course, batch) == pytest.approx(by_hand, rel=1e-6)
    assert sum(float(course.compute_losses(part, len(rows))["model"]) for part in rows.in_order(1)) == pytest.approx(
        by_hand, rel=1e-6
    )
    assert loss_of(student, rows, 2, "rows") == pytest.approx(by_hand, rel=1e-6)
    divergences = [loss(course_of(student, source, next_token=0.0, distill=1.0), batch) for batch in rows.in_order(1)]
    course = course_of(student, source, next_token=0.0, distill=1.0, average="rows")
    assert loss(course, batch) == pytest.approx(sum(divergences) / len(rows), rel=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_divergence_from_the_teacher_matches_its_formula(temperature: float) -> None:
    """The divergence is T² Σ p (log p - log q) at temperature T, and the total weighs both losses."""
    source = small_llama()
    student, batch = student_of(source), whole(rows_of())
    (actual, targets), (wanted, _) = logits_of_documents(student, batch), logits_of_documents(source, batch)
    p, q = (wanted / temperature).softmax(-1), (actual / temperature).softmax(-1)
    by_hand = temperature**2 * (p * (p.log() - q.log())).sum(-1)
    assert float(divergence(actual, wanted, temperature).sum()) == pytest.approx(by_hand.sum().item(), rel=1e-6)
    course = course_of(student, source, next_token=0.0, distill=3.0, temperature=temperature)
    assert loss(course, batch) == pytest.approx(3 * by_hand.mean().item(), rel=1e-5)
    entropy = -actual.log_softmax(-1).gather(1, targets[:, None]).mean().item()
    course = course_of(student, source, next_token=0.5, distill=3.0, temperature=temperature)
    assert loss(course, batch) == pytest.approx(0.5 * entropy + 3 * by_hand.mean().item(), rel=1e-5)


def test_divergence_from_an_equal_distribution_is_0() -> None:
    student = student_of(small_llama())
    course = course_of(student, student, next_token=0.0, distill=1.0)
    assert abs(loss(course, whole(rows_of()))) < 1e-6


CASES = [
    ({"lora": LORA}, {"adapter", "fresh"}),
    ({"lora": LORA, "fresh": False}, {"adapter"}),
    ({"trunk": True}, {"trunk", "fresh"}),
    ({"trunk": True, "fresh": False}, {"trunk"}),
    ({}, {"fresh"}),
    ({"lora": {**LORA, "targets": ["q", "o"]}, "fresh": False}, {"adapter"}),
]


def kind_of(name: str) -> str:
    return "adapter" if ".lora_" in name else "fresh" if ".composed." in name else "trunk"


@pytest.mark.parametrize(("changes", "kinds"), CASES)
def test_the_recipe_selects_the_trained_parameters(changes: dict[str, Any], kinds: set[str]) -> None:
    student, batch = student_of(small_llama()), whole(rows_of())
    course = course_of(student, **changes)
    if "adapter" in kinds:
        stirred(student)
    course.compute_gradients(batch, course.count(batch))
    expected = {name for name, _ in student.named_parameters() if kind_of(name) in kinds}
    assert gradients(student).keys() == course.units[0].parameters.keys() == expected
    before = {name: parameter.detach().clone() for name, parameter in student.named_parameters()}
    course.units[0].update(0, 1, 1.0)
    after = dict(student.named_parameters())
    assert {name for name, old in before.items() if not torch.equal(old, after[name])} == expected


def test_adapters_are_on_the_projections_of_the_recipe() -> None:
    student = student_of(small_llama())
    course_of(student, lora={**LORA, "targets": ["v", "o"]})
    places = {name.split(".lora_")[0].rsplit(".", 1)[1] for name, _ in student.named_parameters() if ".lora_" in name}
    assert places == {"v_proj", "o_proj"}
    assert sum(".lora_" in name for name, _ in student.named_parameters()) == 2 * 2 * 2


def test_fresh_parameters_and_the_trunk_have_separate_learning_rates() -> None:
    student, batch = student_of(small_llama()), whole(rows_of())
    course = course_of(student, trunk=True, fresh_lr=0.25, clip=None)
    course.compute_gradients(batch, course.count(batch))
    before = {name: parameter.detach().clone() for name, parameter in student.named_parameters()}
    course.units[0].update(0, 1, 1.0)
    moved = {"fresh": 0.0, "trunk": 0.0}
    for name, parameter in student.named_parameters():
        moved[kind_of(name)] = max(moved[kind_of(name)], float((parameter.detach() - before[name]).abs().max()))
    assert moved == pytest.approx({"fresh": 0.25, "trunk": 0.01}, rel=1e-3)


def test_adapters_start_as_the_identity_and_depend_on_the_seed() -> None:
    source, batch, starts = small_llama(), whole(rows_of()), []
    plain = loss(course_of(student_of(source)), batch)
    state = torch.get_rng_state()
    for seed in (0, 0, 1):
        student = student_of(source)
        add_adapters(student, Lora(**LORA), seed)
        stage = finetune(lora=LORA)
        assert loss(FinetuneCourse(student, finetune_unit(student, stage), stage, None), batch) == plain
        starts.append({name: parameter for name, parameter in student.named_parameters() if ".lora_A" in name})
    assert torch.equal(torch.get_rng_state(), state), "nobody else's random numbers are used up"
    assert all(torch.equal(starts[0][name], starts[1][name]) for name in starts[0])
    assert not any(torch.equal(starts[0][name], starts[2][name]) for name in starts[0])


def test_an_adapter_is_scaled_by_alpha_over_rank() -> None:
    """The adapted weight is W + α/r BA, and merging does not change the outputs."""
    source, batch = small_llama(), whole(rows_of())
    student = student_of(source)
    course = course_of(student, lora=LORA)
    stirred(student)
    own, with_adapters = dict(student.named_parameters()), loss(course, batch)
    folded = fold_adapters(student)
    assert len(folded) == 8
    for name, weight in folded.items():
        stem = name.removesuffix(".weight")
        update = own[f"{stem}.lora_B.default.weight"] @ own[f"{stem}.lora_A.default.weight"] * 3.0 / 2
        torch.testing.assert_close(weight, own[f"{stem}.base_layer.weight"] + update, rtol=1e-5, atol=1e-7)
    plain = student_of(source)
    with torch.no_grad():
        for name, weight in folded.items():
            plain.get_parameter(name).copy_(weight)
    assert loss(course_of(plain), batch) == pytest.approx(with_adapters, rel=1e-6)
    assert loss(course_of(student_of(source)), batch) != pytest.approx(with_adapters, rel=1e-3)


def test_tied_embeddings_are_one_parameter() -> None:
    student = student_of(small_llama(tie_word_embeddings=True))
    names = course_of(student, trunk=True).units[0].parameters
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names
    assert student.lm_head.weight is student.model.embed_tokens.weight


def drawn(tokens: int, vocabulary: int) -> tuple[torch.Tensor, torch.Tensor]:
    return 4 * torch.randn(tokens, vocabulary, dtype=torch.float64), torch.randint(vocabulary, (tokens,))


@pytest.mark.parametrize(("tokens", "vocabulary"), [(1, 3), (7, 97), (5, 5000)], ids=["one", "odd", "several blocks"])
def test_the_kernel_matches_the_definition(tokens: int, vocabulary: int, monkeypatch: pytest.MonkeyPatch) -> None:
    exact, targets = drawn(tokens, vocabulary)
    exact.requires_grad_()
    weight = torch.rand(tokens, dtype=torch.float64)
    expected = functional.cross_entropy(exact, targets, reduction="none")
    (expected * weight).sum().backward()
    logits = exact.detach().float().requires_grad_()
    assert why_not_fused(logits, "fla") is None
    monkeypatch.setattr(functional, "cross_entropy", _not_called)
    losses = next_token_losses(logits, targets, "fla")
    (losses * weight.float()).sum().backward()
    assert losses.dtype is torch.float32
    torch.testing.assert_close(losses.double(), expected, rtol=1e-5, atol=1e-5)
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad.double(), exact.grad, rtol=0, atol=1e-6)


def _not_called(*_: Any, **__: Any) -> Any:
    raise AssertionError("the kernel computes it")


@pytest.mark.parametrize("backend", ["auto", "torch", "reference", "triton"])
def test_on_a_cpu_the_definition_runs(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    logits, targets = drawn(5, 11)
    monkeypatch.setattr(Kernel, "__call__", _not_called)
    losses = next_token_losses(logits.float(), targets, backend)
    torch.testing.assert_close(losses.double(), functional.cross_entropy(logits, targets, reduction="none"), rtol=1e-5, atol=1e-5)


def test_unsupported_inputs_use_the_definition() -> None:
    logits, targets = drawn(5, 11)
    assert why_not_fused(logits, "fla") == "it does not serve float64"
    assert why_not_fused(logits.half(), "fla") == "it does not serve float16"
    assert why_not_fused(logits[:0].float(), "fla") == "there is no token"
    assert next_token_losses(logits[:0].float(), targets[:0], "fla").shape == (0,)
    assert next_token_losses(logits, targets, "fla").dtype is torch.float32


def test_gradients_of_narrow_logits_are_rounded_once() -> None:
    """Gradients are rounded to the narrow dtype once."""
    logits, targets = drawn(6, 50)
    narrow = logits.bfloat16().requires_grad_()
    losses = next_token_losses(narrow, targets)
    losses.sum().backward()
    assert losses.dtype is torch.float32
    torch.testing.assert_close(losses, functional.cross_entropy(narrow.float(), targets, reduction="none"))
    assert narrow.grad is not None
    assert narrow.grad.dtype is torch.bfloat16


def test_refused_inputs_use_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(kernel: Kernel, *_: Any, **__: Any) -> Any:
        assert kernel is ENTROPY
        raise Refused("a loss refused in a test")

    logits, targets = drawn(5, 11)
    monkeypatch.setattr(Kernel, "__call__", refused)
    with pytest.warns(FallsBack, match="a loss refused in a test"):
        losses = next_token_losses(logits.float(), targets, "fla")
    torch.testing.assert_close(losses, functional.cross_entropy(logits.float(), targets, reduction="none"))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
def test_on_a_gpu_auto_selects_the_kernel(kind: torch.dtype) -> None:
    """The vocabulary is Llama 3's."""
    exact, targets = drawn(130, 128_256)
    logits, targets = exact.to(kind).cuda().requires_grad_(), targets.cuda()
    assert why_not_fused(logits, "auto") is None
    wide = logits.detach().double().requires_grad_()
    expected = functional.cross_entropy(wide, targets, reduction="none")
    expected.sum().backward()
    losses = next_token_losses(logits, targets)
    losses.sum().backward()
    torch.testing.assert_close(losses.double(), expected, rtol=1e-4, atol=1e-4)
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad.double(), wide.grad, rtol=1e-2, atol=1e-4)
