"""The student continues prompts by its own distribution, learns the teacher's there, and every draw follows from seed and step."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from composer.data.packing import IGNORED
from composer.errors import TrainingError
from composer.model.modeling import ComposedForCausalLM
from composer.spec.recipe import Finetune, OnPolicy
from composer.training.finetune import FinetuneCourse, finetune_unit
from composer.training.on_policy import (
    ContinuedBatch,
    check_on_policy,
    continue_batch,
    continue_prompts,
    continued,
    generalised_divergence,
    prompt_of,
    uniform_numbers,
)
from composer.training.options import TrainingOptions
from tests.composer.training.runs import rows_of, small_llama, student_of, teacher_of, whole

DIVERGENCES = [{"divergence": "forward_kl"}, {"divergence": "reverse_kl"}, {"divergence": "jsd", "beta": 0.3}]
TOKENS = 5


@cache
def models() -> tuple[ComposedForCausalLM, ComposedForCausalLM]:
    """Return a student and its teacher in float64."""
    source = small_llama()
    return student_of(source).eval(), teacher_of(source)


def finetune(**changes: Any) -> Finetune:
    return Finetune.model_validate({"lr": 0.01, "steps": 1, "on_policy": {"share": 1.0, "tokens": TOKENS}} | changes)


def by_definition(student: Tensor, teacher: Tensor, stage: OnPolicy) -> list[float]:
    """Return the divergences by sums over numbers, token by token."""
    losses = []
    for own, wanted in zip(student.double() / stage.temperature, teacher.double() / stage.temperature, strict=True):
        q, p = own.exp() / own.exp().sum(), wanted.exp() / wanted.exp().sum()

        def kl(first: Tensor, second: Tensor) -> float:
            return sum(float(a) * np.log(float(a) / float(b)) for a, b in zip(first, second, strict=True))

        beta = stage.beta or 0.5
        mixture = beta * p + (1 - beta) * q
        values = {
            "forward_kl": kl(p, q),
            "reverse_kl": kl(q, p),
            "jsd": beta * kl(p, mixture) + (1 - beta) * kl(q, mixture),
        }
        losses.append(values[stage.divergence])
    return losses


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("choice", DIVERGENCES, ids=lambda choice: choice["divergence"])
def test_divergences_match_their_definitions(choice: dict[str, Any], temperature: float) -> None:
    stage = OnPolicy(**choice, temperature=temperature)
    generator = torch.Generator().manual_seed(0)
    student, teacher = (3 * torch.randn(4, 9, generator=generator, dtype=torch.float64) for _ in range(2))
    expected = torch.tensor(by_definition(student, teacher, stage), dtype=torch.float64)
    torch.testing.assert_close(generalised_divergence(student, teacher, stage), expected, rtol=1e-12, atol=1e-12)
    narrow = generalised_divergence(student.float(), teacher.float(), stage)
    torch.testing.assert_close(narrow.double(), expected, rtol=1e-5, atol=1e-6)
    student.requires_grad_()
    assert torch.autograd.gradcheck(lambda logits: generalised_divergence(logits, teacher, stage), student)
    equal = generalised_divergence(teacher, teacher, stage)
    assert float(equal.abs().max()) < 1e-12


def test_extreme_logits_have_finite_divergences() -> None:
    student = torch.tensor([[500.0, -500.0, 0.0]], requires_grad=True)
    teacher = torch.tensor([[-500.0, 500.0, 0.0]])
    for choice in DIVERGENCES:
        loss = generalised_divergence(student, teacher, OnPolicy(**choice)).sum()
        (gradient,) = torch.autograd.grad(loss, student)
        assert bool(loss.isfinite())
        assert bool(gradient.isfinite().all())


def test_continuations_follow_the_models_distribution() -> None:
    """Each token is the inverse of the cumulative distribution of whole calls without a cache, also in a batch of several lengths
    and with fewer columns than the vocabulary."""
    student, _ = models()
    prompts = [torch.arange(3, 3 + length) for length in (2, 9, 5)]
    numbers = torch.tensor(uniform_numbers(0, 3, 3 * TOKENS)).unflatten(0, (3, TOKENS))
    written = continue_prompts(student, prompts, numbers, 0.7, 50)
    for row, prompt in enumerate(prompts):
        text = prompt
        for number in numbers[row].tolist():
            with torch.no_grad():
                logits = student(text[None], use_cache=False).logits[0, -1, :50]
            mass = (logits.double() / 0.7).softmax(-1).cumsum(-1)
            text = torch.cat([text, (mass <= number * mass[-1]).sum()[None]])
        assert text[len(prompt) :].tolist() == written[row].tolist()
        alone = continue_prompts(student, [prompt], numbers[row : row + 1], 0.7, 50)
        assert alone[0].tolist() == written[row].tolist()


def test_numbers_depend_on_seed_and_step_only() -> None:
    drawn = [uniform_numbers(seed, step, 4000) for seed, step in ((0, 0), (0, 0), (0, 1), (1, 0))]
    assert (drawn[0] == drawn[1]).all()
    assert (uniform_numbers(0, 0, 7) == drawn[0][:7]).all()
    assert all(abs(numbers.mean() - 0.5) < 0.03 and 0 <= numbers.min() < numbers.max() < 1 for numbers in drawn)
    assert len({*np.concatenate(drawn)}) == 3 * 4000, "steps and seeds share no number"


def row_of(learned: str, position: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids from 10, labels where ``learned`` has x, and positions by digits."""
    ids = torch.arange(10, 10 + len(learned))
    labels = torch.where(torch.tensor([mark == "x" for mark in learned]), ids, IGNORED)
    return ids, labels, torch.tensor([int(digit) for digit in position])


@pytest.mark.parametrize(
    ("learned", "position", "number", "longest", "prompt"),
    [
        ("...xx..x", "01234567", 0.0, 9, [10, 11, 12]),
        ("...xx..x", "01234567", 0.9, 9, [10, 11, 12, 13, 14, 15, 16]),
        ("...xx..x", "01234567", 0.9, 2, [15, 16]),
        (".xxx..xx", "01230123", 0.0, 9, [14, 15]),
        (".xxx.xxx", "01230123", 0.0, 9, [10]),
        (".xxx.xxx", "01230123", 0.99, 9, [14, 15, 16]),
        ("xxx", "012", 0.99, 9, [10, 11]),
    ],
    ids=["answer", "second answer", "end of a long prompt", "answer of a later document", "text", "later text", "row of one text"],
)
def test_prompts_end_where_answers_start(learned: str, position: str, number: float, longest: int, prompt: list[int]) -> None:
    assert prompt_of(*row_of(learned, position), number, longest).tolist() == prompt


def test_a_continuation_ends_with_its_first_end_token() -> None:
    batch = continued([torch.tensor([5, 6, 7]), torch.tensor([8])], {0: [9, 2, 9], 1: [9, 9, 9]}, [2])
    assert isinstance(batch, ContinuedBatch)
    assert batch.ids.tolist() == [[5, 6, 7, 9, 2], [8, 9, 9, 9, 0]]
    assert batch.labels.tolist() == [[-100, -100, -100, 9, 2], [-100, 9, 9, 9, -100]]
    assert batch.valid.tolist() == [[True] * 5, [True] * 4 + [False]]
    assert batch.targets.tolist() == [2, 3]
    assert all(isinstance(part, ContinuedBatch) for part in batch.split(2))


def test_share_is_the_share_of_steps() -> None:
    student, teacher = models()
    batch, stage = rows_of().batch([0]), OnPolicy(share=0.25, tokens=1)
    steps = [continue_batch(student, teacher, batch, stage, 0, step) is not batch for step in range(60)]
    assert 6 <= sum(steps) <= 24


@pytest.mark.parametrize("choice", DIVERGENCES, ids=lambda choice: choice["divergence"])
def test_steps_learn_from_what_the_student_wrote(choice: dict[str, Any]) -> None:
    """The loss is the mean divergence over written tokens, text by text without padding; the text's own losses do not count. Its
    gradient reaches the trained parameters."""
    student, teacher = models()
    stage = finetune(on_policy={"share": 1.0, "tokens": TOKENS, "temperature": 0.8, **choice})
    assert stage.on_policy is not None
    course = FinetuneCourse(student, finetune_unit(student, stage), stage, teacher, seed=4)
    batch = course.prepare(whole(rows_of()), 7)
    assert isinstance(batch, ContinuedBatch)
    losses: list[Tensor] = []
    for row, targets in enumerate(batch.targets.tolist()):
        text = batch.ids[row, : int(batch.valid[row].sum())]
        with torch.no_grad():
            own, wanted = (model(text[None], use_cache=False).logits[0, -targets - 1 : -1] for model in (student, teacher))
        losses.append(generalised_divergence(own.float(), wanted.float(), stage.on_policy))
    total = course.count(batch)
    assert total == sum(map(len, losses)) == len(batch) * TOKENS
    learned = sum(float(course.compute_gradients(part, total)["model"]) for part in batch.split(2))
    assert learned == pytest.approx(float(torch.cat(losses).mean()), rel=1e-5)
    assert all(parameter.grad is not None for parameter in course.units[0].parameters.values())
    student.zero_grad(set_to_none=True)
    student.eval()


def test_evaluations_weigh_both_losses_at_held_out_tokens() -> None:
    student, teacher = models()
    batch = whole(rows_of())

    def judged(**changes: Any) -> float:
        stage = finetune(**changes)
        course = FinetuneCourse(student, finetune_unit(student, stage), stage, teacher)
        return float(course.compute_losses(batch, course.count(batch))["model"])

    text = judged(on_policy=None)
    own = judged(on_policy={"tokens": TOKENS, "share": 1.0})
    mixed = judged(on_policy={"tokens": TOKENS, "share": 0.25})
    assert mixed == pytest.approx(0.75 * text + 0.25 * own, rel=1e-5)
    assert judged(next_token=0.0, on_policy={"tokens": 1, "share": 1.0, "divergence": "forward_kl"}) == pytest.approx(
        judged(next_token=0.0, distill=1.0, on_policy=None), rel=1e-5
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"next_token": 0.0, "on_policy": {"share": 0.5}}, "learns nothing from texts: next_token and distill are both 0"),
        ({"on_policy": {"beta": 0.1}}, r"has a weight \(beta\) for the mixture of jsd, and compares by reverse_kl: leave beta out"),
        ({"on_policy": {"share": 0.0}}, "greater than 0"),
    ],
)
def test_recipes_without_effect_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        finetune(**changes)


@pytest.mark.parametrize(
    ("options", "sequence", "message"),
    [
        ({"teacher_logits": "logits"}, None, "--teacher-logits: .* needs the teacher itself.*student writes other texts"),
        ({}, TOKENS, f"on_policy.tokens is {TOKENS}, and a row has {TOKENS} tokens: none is left for a prompt"),
    ],
)
def test_runs_that_cannot_continue_prompts_are_refused(options: dict[str, Any], sequence: int | None, message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        check_on_policy({"finetune": finetune()}, TrainingOptions([], **options), sequence)
    check_on_policy({"finetune": finetune(on_policy=None)}, TrainingOptions([], **options), sequence)


def test_recipes_without_it_are_stored_as_before() -> None:
    """Runs of earlier recipes continue, and are found by the same names."""
    assert "on_policy" not in finetune(on_policy=None).model_dump()
