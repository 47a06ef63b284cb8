"""Scores equal a plain computation with transformers for any batch, and batches shrink if memory runs out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import composer
from composer.errors import EvaluationError
from composer.evaluation import scoring
from composer.evaluation.arguments import Perplexity
from composer.evaluation.cells import SampleResult, bucket_size
from composer.evaluation.scoring import MORE, CellFailed, draw_samples, ends_of, judge_tokens, score_cell, write
from composer.model.cache import CACHE
from composer.system.devices import ran_out_of_memory
from composer.tasks.base import Sample, make_sample
from composer.tasks.dictionary import Dictionary
from composer.tasks.mqar import Mqar
from composer.tasks.passkey import Passkey
from composer.tasks.recall import Recall
from composer.tasks.stories import Stories
from composer.tasks.writer import Writer
from tests.composer.hosts.families import PASSED, UNLIKE, small
from tests.covers import some

FEW = ("qwen3", "gemma2", "granite", "cohere2")
LENGTH = 300  # more than the teacher's 256: some passkeys are lost, so that scores differ
FULL = RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")


def samples_of(task: Any, tokenizer: Any, length: int = LENGTH) -> list[Sample]:
    every = draw_samples(task, Writer(tokenizer), length)
    return [every.draw(index) for index in range(every.count)]


def scores(judged: Sequence[SampleResult]) -> list[float]:
    return [result.score for result in judged]


def test_generated_texts_equal_those_of_transformers(plain: Any, tokenizer: Any) -> None:
    task = Passkey(samples=12)
    judged = score_cell(plain, tokenizer, task, LENGTH)
    for sample, result in zip(samples_of(task, tokenizer), judged, strict=True):
        prompt = torch.tensor([sample.prompt_ids])
        limit = len(sample.ids) - prompt.shape[1] + MORE
        answer = plain.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=limit, do_sample=False)
        written = tokenizer.decode(answer[0, prompt.shape[1] :], skip_special_tokens=True)
        assert (result.written, result.score) == (written, task.score(sample, written))
        assert (result.answers, result.depth, result.tokens) == (sample.answers, sample.depth, len(sample.ids))
    assert len(set(scores(judged))) == 2, "some are right and some wrong, or this shows nothing"


def test_the_candidate_with_the_highest_log_probability_is_chosen(plain: Any, tokenizer: Any) -> None:
    """However many texts are in a call. A wrong number is chosen where the text has another one."""
    task, writer = Dictionary(samples=2), Writer(tokenizer)
    made: dict[int, Sample] = {}
    for index, sample in enumerate(samples_of(Passkey(samples=2), tokenizer, 128)):
        key = sample.answers[0] if sample.answers else ""
        others = ("10000", "99999", key[::-1])
        made[index] = make_sample(writer, sample.prompt or "", others[0] if index else key, candidates=(*others, key))
    for batch_tokens in (1, 10_000):
        judged = score_cell(plain, tokenizer, task, 128, samples_by_index=made, batch_tokens=batch_tokens)
        assert scores(judged) == [1.0, 0.0]
        assert [result.written for result in judged] == [(sample.candidates or ("",))[-1] for sample in made.values()]


def test_token_accuracy_counts_the_most_likely_tokens(plain: Any, tokenizer: Any) -> None:
    task = Recall(samples=4)
    judged = score_cell(plain, tokenizer, task, 2 * LENGTH)
    for sample, result in zip(samples_of(task, tokenizer, 2 * LENGTH), judged, strict=True):
        with torch.no_grad():
            chosen = plain(torch.tensor([sample.ids])).logits[0].argmax(-1).tolist()
        places = [place for place, answer in enumerate(sample.answer) if answer]
        right = sum(chosen[place - 1] == sample.ids[place] for place in places)
        assert result.score == pytest.approx(right / len(places), abs=1e-12)
    assert min(scores(judged)) < 1


@pytest.mark.parametrize("task", [Stories(samples=3), Perplexity(text=Path("BOOK"), samples=3)], ids=lambda task: task.name)
def test_loss_equals_that_of_transformers(plain: Any, tokenizer: Any, book: Path, task: Any) -> None:
    if isinstance(task, Perplexity):
        task = Perplexity(text=book, samples=3)
    judged = score_cell(plain, tokenizer, task, LENGTH)
    for sample, result in zip(samples_of(task, tokenizer), judged, strict=True):
        ids = torch.tensor([sample.ids])
        with torch.no_grad():
            loss = plain(ids, labels=ids.where(ids != tokenizer.bos_token_id, -100)).loss.item()
        assert result.score == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("family", some(PASSED, UNLIKE))
@torch.no_grad()
def test_logits_equal_those_of_the_family(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits include the family's scales, soft caps and prediction heads, computed a few tokens at a time."""
    if family not in CONFIG_MAPPING:
        pytest.skip("not in this version of transformers")
    monkeypatch.setattr(scoring, "LOGITS", 500)
    source = small(family)
    texts = [torch.randint(3, 90, (length,)).tolist() for length in (14, 9)]
    for model in (source, composer.build("softmax", source)) if family in FEW else (source,):
        for text, (right, nats) in zip(texts, judge_tokens(model, texts, [[True] * len(text) for text in texts]), strict=True):
            logits = model(input_ids=torch.tensor([text]), use_cache=False).logits[0, :-1].double()
            expected = torch.nn.functional.cross_entropy(logits, torch.tensor(text[1:]), reduction="none")
            torch.testing.assert_close(nats, expected, rtol=1e-5, atol=1e-5)
            assert torch.equal(right, (logits.argmax(-1) == torch.tensor(text[1:])).float())


def test_loss_by_position_averages_each_position(plain: Any, tokenizer: Any, book: Path) -> None:
    task = Perplexity(text=book, samples=1)
    (result,) = score_cell(plain, tokenizer, task, LENGTH)
    ids = torch.tensor([samples_of(task, tokenizer)[0].ids])
    with torch.no_grad():
        logits = plain(ids).logits[0, :-1]
    nats = [None, *torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none").tolist()]
    size = bucket_size(LENGTH)
    assert result.nats is not None
    assert (size, len(result.nats)) == (5, 60)
    for place, loss in enumerate(result.nats):
        part = [known for known in nats[place * size : (place + 1) * size] if known is not None]
        assert loss == pytest.approx(sum(part) / len(part), abs=1e-4)


def test_softmax_students_score_as_their_teacher(plain: Any, folders: dict[str, Path], tokenizer: Any) -> None:
    student = composer.load(folders["softmax"])
    for task in (Passkey(samples=6), Recall(samples=2)):
        ours, theirs = (score_cell(model, tokenizer, task, LENGTH) for model in (student, plain))
        assert [(result.written, result.score) for result in ours] == [(result.written, result.score) for result in theirs]


@pytest.mark.parametrize("name", ["teacher", "lola", "lawcat"])
@pytest.mark.parametrize("task", [Passkey(samples=3), Recall(samples=3, pairs=4), Mqar(samples=3), Stories(samples=3)])
def test_the_batch_size_does_not_change_scores(plain: Any, folders: dict[str, Path], tokenizer: Any, task: Any, name: str) -> None:
    model: Any = plain if name == "teacher" else composer.load(folders[name])
    alone, pairs, together = (score_cell(model, tokenizer, task, 160, batch_tokens=tokens) for tokens in (1, 2 * 160, 1000 * 160))
    for first, two, three in zip(alone, pairs, together, strict=True):
        assert first.written == two.written == three.written
        assert first.score == pytest.approx(two.score, abs=1e-5) == pytest.approx(three.score, abs=1e-5)


@pytest.mark.parametrize("name", ["teacher", "lola", "lawcat"])
def test_prompts_of_different_lengths_in_one_batch_equal_single_prompts(
    plain: Any, folders: dict[str, Path], tokenizer: Any, name: str
) -> None:
    model: Any = plain if name == "teacher" else composer.load(folders[name])
    texts = [sample.ids[: 30 + 41 * place] for place, sample in enumerate(samples_of(Stories(samples=4), tokenizer))]
    most = [7, 20, 1, 12]
    alone = [write(model, [text], [count], ())[0] for text, count in zip(texts, most, strict=True)]
    assert write(model, texts, most, ()) == alone
    assert [len(text) for text in alone] == most
    is_asked = [[place % 3 > 0 for place in range(len(text))] for text in texts]
    for (right, nats), text, row in zip(judge_tokens(model, texts, is_asked), texts, is_asked, strict=True):
        ((lonely, loss),) = judge_tokens(model, [text], [row])
        assert (len(nats), right.tolist()) == (sum(row[1:]), lonely.tolist())
        torch.testing.assert_close(nats, loss, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["teacher", "lola"])
def test_decode_steps_receive_mask_and_positions_only_for_key_value_caches(plain: Any, folders: dict[str, Path], name: str) -> None:
    """For padded prompts, a cache of keys and values needs mask and positions. A cache of states counts by itself."""
    model: Any = plain if name == "teacher" else composer.load(folders[name])
    calls: list[dict[str, list[list[int]]]] = []

    def seen(_module: Any, _inputs: Any, options: dict[str, Any]) -> None:
        passed = {name: options.get(name) for name in ("attention_mask", "position_ids")}
        calls.append({name: tensor.tolist() for name, tensor in passed.items() if tensor is not None})

    handle = model.register_forward_pre_hook(seen, with_kwargs=True)
    write(model, [[5, 6, 7, 8], [9]], [3, 3], ())
    handle.remove()
    first, *steps = calls
    assert first == {"attention_mask": [[1, 1, 1, 1], [0, 0, 0, 1]], "position_ids": [[0, 1, 2, 3], [0, 0, 0, 0]]}
    later = [{"attention_mask": [[1, 1, 1, 1, 1], [0, 0, 0, 1, 1]], "position_ids": [[4], [1]]}]
    later += [{"attention_mask": [[1, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1]], "position_ids": [[5], [2]]}]
    assert steps == (later if name == "teacher" else [{}, {}])


OTHERS: dict[str, dict[str, Any]] = {
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32, "init_std": 0.3},
    "mamba": {"state_size": 8, "initializer_range": 0.3},
    "rwkv": {"context_length": 64},
    "openai-gpt": {"n_embd": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.3},
}
"""Families that are no sources, and are scored beside students: whose base calls another, and which have no keys and values."""


@pytest.mark.parametrize("family", OTHERS)
@torch.no_grad()
def test_any_causal_model_of_transformers_is_scored(family: str) -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "pad_token_id": 0}
    model: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes | OTHERS[family])).eval()
    texts = [torch.randint(3, 90, (length,)).tolist() for length in (12, 5)]
    for text, (_, nats), written in zip(
        texts, judge_tokens(model, texts, [[True] * len(text) for text in texts]), write(model, texts, [4, 4], ()), strict=True
    ):
        logits = model(input_ids=torch.tensor([text])).logits[0, :-1].double()
        expected = torch.nn.functional.cross_entropy(logits, torch.tensor(text[1:]), reduction="none")
        torch.testing.assert_close(nats, expected, rtol=1e-5, atol=1e-5)
        for token in written:
            assert token == int(model(input_ids=torch.tensor([text])).logits[0, -1].argmax())
            text.append(token)


def test_models_with_custom_logits_are_scored(plain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "get_output_embeddings", lambda: torch.nn.Linear(1, 1))
    monkeypatch.setattr(plain, "base_model_prefix", "lm_head")
    with pytest.raises(EvaluationError, match="computes its logits in a custom way"):
        judge_tokens(plain, [[5, 6]], [[True, True]])


class Counting:
    """A model that writes the next number, and 9 after 9."""

    device = "cpu"
    generation_config = SimpleNamespace(eos_token_id=[5, 7])
    calls = 0

    def __call__(self, input_ids: torch.Tensor, **_: Any) -> Any:
        self.calls += 1
        logits = torch.nn.functional.one_hot((input_ids[:, -1:] + 1).clamp(max=9), 10).float()
        return SimpleNamespace(logits=logits, **{CACHE: ()})


def test_generation_ends_at_an_end_token_or_the_maximum_length() -> None:
    """Writing ends at an end token, which is not included, or after a number of tokens, once all rows are done."""
    model = Counting()
    assert write(model, [[0, 1], [3], [6]], [2, 9, 9], {5}) == [[2, 3], [4], [7, 8, 9, 9, 9, 9, 9, 9, 9]]
    assert model.calls == 9
    ends = SimpleNamespace(end=[2])
    assert ends_of(model, ends) == {2, 5, 7}  # pyright: ignore[reportArgumentType]
    assert ends_of(SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=3)), ends) == {2, 3}  # pyright: ignore
    assert ends_of(SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=None)), ends) == {2}  # pyright: ignore


def test_generation_configs_are_ignored(plain: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Passkey(samples=2)
    before = scores(score_cell(plain, tokenizer, task, 200))
    for name, value in (("repetition_penalty", 50.0), ("do_sample", True), ("temperature", 9.0), ("max_length", 3)):
        monkeypatch.setattr(plain.generation_config, name, value)
    assert scores(score_cell(plain, tokenizer, task, 200)) == before == [1.0, 1.0]


def limited(most: int, error: Exception) -> Callable[..., Any]:
    """Return a hook that accepts batches up to this many rows."""

    def hook(_module: Any, _inputs: Any, named: dict[str, Any]) -> None:
        if len(named["input_ids"]) > most:
            raise error

    return hook


@pytest.mark.parametrize(
    "error",
    [
        FULL,
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory."),
        torch.AcceleratorError("CUDA error: out of memory", 2),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
    ids=["cpu", "python", "cuda", "driver", "cublas"],
)
@pytest.mark.parametrize("task", [Passkey(samples=7), Recall(samples=7, pairs=4)])
def test_batches_are_halved_if_memory_runs_out(plain: Any, tokenizer: Any, task: Any, error: Exception) -> None:
    expected = score_cell(plain, tokenizer, task, 160)
    hook = plain.model.register_forward_pre_hook(limited(2, error), with_kwargs=True)
    try:
        results = score_cell(plain, tokenizer, task, 160)
    finally:
        hook.remove()
    assert scores(results) == pytest.approx(scores(expected))
    hook = plain.model.register_forward_pre_hook(limited(0, error), with_kwargs=True)
    try:
        with pytest.raises(CellFailed, match="^out of memory$"):
            score_cell(plain, tokenizer, task, 160)
    finally:
        hook.remove()


def test_other_errors_are_raised(plain: Any, tokenizer: Any) -> None:
    assert not ran_out_of_memory(ValueError("out of memory"))
    hook = plain.model.register_forward_pre_hook(limited(0, RuntimeError("a shape is wrong")), with_kwargs=True)
    try:
        with pytest.raises(RuntimeError, match="a shape is wrong"):
            score_cell(plain, tokenizer, Recall(samples=1), 160)
    finally:
        hook.remove()


@pytest.mark.parametrize("task", [Passkey(samples=1), Recall(samples=1, pairs=4), Stories(samples=1)])
def test_scores_that_are_not_finite_raise(folders: dict[str, Path], tokenizer: Any, task: Any) -> None:
    model: Any = composer.load(folders["softmax"])
    with torch.no_grad():
        model.lm_head.weight[3, 3] = float("nan")
    with pytest.raises(CellFailed, match="^not finite$"):
        score_cell(model, tokenizer, task, 160)


def test_only_missing_samples_are_computed(plain: Any, tokenizer: Any) -> None:
    """Batches are those of an uninterrupted run, and known samples are not computed again."""
    task, calls, sizes = Stories(samples=7), [], []
    expected = score_cell(plain, tokenizer, task, 64, batch_tokens=2 * 64)
    hook = plain.model.layers[0].register_forward_pre_hook(lambda _module, inputs: sizes.append(len(inputs[0])))
    try:
        reported = score_cell(plain, tokenizer, task, 64, batch_tokens=2 * 64, scored_indices={0, 1, 2}, tell=calls.append)
    finally:
        hook.remove()
    assert sizes == [2, 2, 1]
    assert reported == calls
    assert [(reported.index, reported.score) for reported in reported] == [
        (reported.index, reported.score) for reported in expected[3:]
    ]


def test_tokenizers_that_do_not_fit_are_refused(plain: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain.config, "vocab_size", 100)
    with pytest.raises(
        EvaluationError, match=r"recall: token \d+ is not among the model's 100: the tokenizer \(507 tokens\) does not fit"
    ):
        score_cell(plain, tokenizer, Recall(samples=1), 160)
