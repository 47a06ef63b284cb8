"""Caches have the size that `compose explain` computes, positions are reached as in one pass, and a model without memory leaves
the others.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from composer.benching import trial as trial_module
from composer.benching.options import LARGEST
from composer.benching.report import Measurement, Workload
from composer.benching.trial import Contestant, Trial, cache_bytes, run_trial, warm
from composer.errors import BenchError
from composer.model.cache import cache_among
from composer.spec.explain import explain_resolved
from tests.composer.model.models import FEW, llama, student, tokens
from tests.composer.model.recording import on_a_cpu


def trial(**changes: Any) -> Trial:
    whole: dict[str, Any] = {"prefill": (), "decode": (), "batches": (1,), "repeats": 2, "steps": 2, "seed": 0}
    return Trial(**(whole | {"vocabulary": 97, "device": "cpu"} | changes))


@pytest.mark.parametrize("spec", FEW)
def test_state_bytes_equal_those_of_explain(spec: str) -> None:
    model = student(spec, "trunk=null")
    plan = trial(prefill=(70,), decode=(5, 70), batches=(2,), repeats=1, steps=1)
    measurements = dict(run_trial([Contestant("it", model)], plan))
    for workload, measured in measurements.items():
        explained = explain_resolved(model.config.read_spec(), sequence=workload.length, dtype="float64")
        assert measured["it"].state_bytes == 2 * explained.state_bytes, workload.description


def test_the_cache_of_a_source_holds_its_keys_and_values() -> None:
    plan = trial(prefill=(33,), decode=(33, 65), batches=(1, 3))
    explained = explain_resolved(student("lawcat").config.read_spec(), sequence=1, dtype="float64")
    for workload, measured in run_trial([Contestant("it", llama())], plan):
        assert measured["it"].state_bytes == workload.batch * workload.length * explained.kv_cache_bytes


def test_models_without_a_key_value_cache_are_refused() -> None:
    """An RWKV has states instead of `past_key_values`, so the number of read tokens is unknown."""
    sizes: dict[str, Any] = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "context_length": 32}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("rwkv", **sizes)).eval()
    for kind in ("prefill", "decode"):
        with pytest.raises(BenchError, match="it: RwkvForCausalLM returns no (past_key_values|cache)"):
            list(run_trial([Contestant("it", model)], trial(**{kind: (8,)})))


def test_places_are_in_order() -> None:
    plan = trial(prefill=(8, 16), decode=(4,), batches=(1, 2))
    assert list(plan.workloads()) == [
        *(Workload("prefill", 8, 1), Workload("prefill", 16, 1), Workload("decode", 4, 1)),
        *(Workload("prefill", 8, 2), Workload("prefill", 16, 2), Workload("decode", 4, 2)),
    ]


class Listening:
    """A model that records the tokens of each call and the length of the cache before it."""

    def __init__(self, label: str, calls: list[tuple[str, int, tuple[int, ...]]], most: int = 10**9) -> None:
        self.label, self.calls, self.most, self.model = label, calls, most, student("lolcats")

    def __call__(self, ids: torch.Tensor, **passed: Any) -> Any:
        before = cache_among(passed)
        seen = 0 if before is None else before.get_seq_length()
        self.calls.append((self.label, seen, tuple(ids.shape)))
        if (seen + ids.shape[1]) * ids.shape[0] > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        assert passed["use_cache"] is True
        assert passed["logits_to_keep"] == 1
        return self.model(ids, **passed)


def listening(**most: int) -> tuple[list[Contestant], list[tuple[str, int, tuple[int, ...]]]]:
    calls: list[tuple[str, int, tuple[int, ...]]] = []
    return [Contestant(label, Listening(label, calls, limit)) for label, limit in most.items()], calls


def test_models_are_timed_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models alternate prompt by prompt, and after several decoded tokens."""
    monkeypatch.setattr(trial_module, "IN_A_ROW", 2)
    models, calls = listening(a=10**9, b=10**9)
    (_, measurements), (_, decoded) = run_trial(models, trial(prefill=(8,), decode=(4,), batches=(3,), steps=4))
    assert [(label, shape) for label, _, shape in calls[:6]] == [(label, (3, 8)) for label in "ababab"]
    assert calls[6:] == [
        *(("a", 0, (3, 4)), ("a", 4, (3, 1)), ("b", 0, (3, 4)), ("b", 4, (3, 1))),
        *((label, seen, (3, 1)) for turn in ((5, 6), (7, 8)) for label in "ab" for seen in turn),
    ]
    assert [len(value.seconds) for value in (*measurements.values(), *decoded.values())] == [2, 2, 4, 4]
    assert all(min(value.seconds) > 0 for value in (*measurements.values(), *decoded.values()))


def test_later_positions_continue_the_same_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_module, "ROW", 10)
    models, calls = listening(a=10**9)
    list(run_trial(models, trial(decode=(12, 13, 40), steps=2)))
    one_by_one = [(seen, shape) for _, seen, shape in calls if shape[1] == 1]
    assert [(seen, shape[1]) for _, seen, shape in calls if shape[1] > 1] == [
        *((0, 10), (10, 2)),
        *((0, 10), (10, 3)),  # 13 was passed by what was decoded after 12
        *((16, 10), (26, 10), (36, 4)),
    ]
    assert one_by_one == [(seen, (1, 1)) for start in (12, 13, 40) for seen in range(start, start + 3)]


def test_pieces_are_smaller_for_more_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_module, "TOKENS", 16)
    models, calls = listening(a=10**9)
    list(run_trial(models, trial(decode=(10,), batches=(4, 32), steps=1)))
    assert [shape for _, _, shape in calls if shape[1] > 1] == [(4, 4), (4, 4), (4, 2)]
    assert (32, 1) in [shape for _, _, shape in calls]


@pytest.mark.parametrize("spec", ["lola", "latte-macchiato", "softmax"])
def test_pieces_equal_one_pass(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_module, "ROW", 7)
    plan, contestant = trial(), Contestant("it", student(spec))
    with torch.no_grad():
        contestant.reach(30, 2, plan)
        ids = torch.cat([plan.tokens(2, start, min(7, 30 - start)) for start in range(0, 30, 7)], dim=1)
        whole = contestant.prefill(ids)
        after = [contestant.model(tokens(2, 1), past_key_values=cache).logits for cache in (contestant.cache, whole)]
    torch.testing.assert_close(*after)
    assert cache_bytes(contestant.cache) == cache_bytes(whole)


def test_tokens_are_equal_for_all_models_and_pinned() -> None:
    plan = trial(seed=3, vocabulary=5)
    assert torch.equal(plan.tokens(2, 10, 6), plan.tokens(2, 10, 6))
    assert not torch.equal(plan.tokens(2, 10, 60), plan.tokens(2, 11, 60))
    assert set(plan.tokens(1, 0, 200).flatten().tolist()) == set(range(5))


def test_models_without_memory_do_not_stop_the_others() -> None:
    """Model b has memory for 40 tokens."""
    models, calls = listening(a=10**9, b=40, c=10**9)
    measurements = dict(run_trial(models, trial(prefill=(64,), decode=(8, 48, 64), batches=(1, 2), repeats=1, steps=1)))
    lost = {workload for workload, measured in measurements.items() if measured["b"].failure == "out of memory"}
    assert lost == set(measurements) - {Workload("decode", 8, 1), Workload("decode", 8, 2)}
    assert all(
        measured[workload].failure is None and len(measured[workload].seconds) == 1
        for measured in measurements.values()
        for workload in "ac"
    )
    assert all(measurements[workload]["b"] == Measurement(failure="out of memory") for workload in lost)
    beyond = [(seen, shape) for label, seen, shape in calls if label == "b" and (seen + shape[1]) * shape[0] > 40]
    assert beyond == [(0, (1, 64)), (10, (1, 38)), (0, (2, 64)), (10, (2, 38))], "no attempt at 64 once there was no room at 48"
    assert models[1].cache is None


def test_out_of_memory_between_rounds() -> None:
    """Memory runs out at the last decoded token."""
    models, _ = listening(a=10**9, b=10)
    ((_, measurements),) = run_trial(models, trial(decode=(8,)))
    assert (measurements["a"].failure, measurements["b"]) == (None, Measurement(failure="out of memory"))
    assert models[1].full


def test_lengths_without_memory_for_any_model_are_reported() -> None:
    models, calls = listening(a=10**9, b=10**9)
    ((_, measurements),) = run_trial(models, trial(prefill=(LARGEST,), batches=(LARGEST,)))
    assert [measurement.failure for measurement in measurements.values()] == ["out of memory"] * 2
    assert calls == []


def test_warming_up_leaves_no_state() -> None:
    models, calls = listening(a=10**9)
    warm(models, trial())
    assert [shape for _, _, shape in calls] == [(1, 8), (1, 1)]
    assert models[0].cache is None


def test_no_gradients_are_recorded() -> None:
    model = student("lawcat").requires_grad_()
    contestant = Contestant("it", model)
    list(run_trial([contestant], trial(decode=(8,))))
    assert not any(tensor.requires_grad for tensor in contestant.cache.state(0).tensors.values())


def test_steps_are_recorded_before_they_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each position and batch size is recorded as a CUDA graph before it is timed. The recording is freed with its cache."""
    on_a_cpu(monkeypatch, trial_module)
    model, made = student("lolcats"), []
    whole = model.recording
    monkeypatch.setattr(model, "recording", lambda cache: made.append(whole(cache)) or made[-1])
    contestant = Contestant("it", model, graph=True)
    for _, measurements in run_trial([contestant], trial(decode=(5, 70), batches=(1, 2), steps=3)):
        assert len(measurements["it"].seconds) == 3
        assert made[-1].replays
        assert made[-1] is contestant.cache.recorder
    assert len(made) == 2


def test_steps_are_recorded_only_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_cpu(monkeypatch, trial_module)
    contestant = Contestant("it", student("lolcats"))
    assert len(list(run_trial([contestant], trial(decode=(5,))))) == 1
    assert contestant.cache.recorder is None
