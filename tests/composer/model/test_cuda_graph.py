"""Recorded and replayed decode steps write the same tokens. On a CPU their operations are recorded (``recording``), which shows
that a step has nothing else. On a GPU (`make gpu`) it is a CUDA graph.
"""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Any
from weakref import ref

import pytest
import torch
from transformers import StoppingCriteriaList

from blocks.memories import stored_pairs as ring
from composer.model import cuda_graph
from composer.model.cuda_graph import Recorder
from composer.model.modeling import ComposedForCausalLM
from composer.system.notices import FallsBack
from tests.composer.model.models import FEW, tokens
from tests.composer.model.recording import on_a_cpu
from tests.composer.model.test_in_place import small
from tests.composer.model.trunks import model as fresh

GREEDY: dict[str, Any] = {"do_sample": False, "eos_token_id": None, "max_new_tokens": 9}
MODES: dict[str, dict[str, Any]] = {
    "greedy": GREEDY,
    "beams": GREEDY | {"num_beams": 3},
    "sampling": GREEDY | {"do_sample": True, "temperature": 1.3},
    "several answers": GREEDY | {"do_sample": True, "num_return_sequences": 3},
}


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
    """Make recorders on a CPU, where Python reads no numbers either. Yields the recorders."""
    made: list[Recorder] = []

    def recording_of(self: ComposedForCausalLM, cache: Any) -> Recorder:
        made.append(whole(self, cache))
        return made[-1]

    whole = ComposedForCausalLM.recording
    on_a_cpu(monkeypatch)
    monkeypatch.setattr(ComposedForCausalLM, "recording", recording_of)
    return made


def generate_without_graph(model: ComposedForCausalLM, ids: torch.Tensor, **settings: Any) -> torch.Tensor:
    model.use_graph = False
    torch.manual_seed(7)
    answer = model.generate(ids, **settings)
    model.use_graph = True
    torch.manual_seed(7)
    return answer


@pytest.mark.parametrize("spec", FEW)
def test_recorded_steps_of_every_spec_generate_the_same_text(spec: str, replays: list[Recorder]) -> None:
    """Steps are recorded if the state does not grow."""
    model, ids = small(spec), tokens(2, 9)
    wanted = generate_without_graph(model, ids, **GREEDY)
    assert not replays
    assert torch.equal(model.generate(ids, **GREEDY), wanted)
    (recorder,) = replays
    heads = model.config.read_spec().heads.values()
    assert recorder.replays is not any(memory.grows for head in heads for memory in head.memory)


SEVERAL = ("lolcats", "lola", "lawcat", "gated-delta", "latte-macchiato")


@pytest.mark.parametrize(
    ("spec", "mode"), [*((spec, "beams") for spec in SEVERAL), ("lola", "sampling"), ("latte-macchiato", "several answers")]
)
def test_recorded_steps_in_every_mode_generate_the_same_text(spec: str, mode: str, replays: list[Recorder]) -> None:
    model, ids = small(spec), tokens(2, 9)
    wanted = generate_without_graph(model, ids, **MODES[mode])
    assert torch.equal(model.generate(ids, **MODES[mode]), wanted)
    assert replays[0].replays


def test_recorded_steps_of_padded_rows_generate_the_same_text(replays: list[Recorder]) -> None:
    model, ids = small("lolcats"), tokens(2, 9)
    mask = torch.ones(2, 9, dtype=torch.int64)
    mask[0, :4] = 0
    wanted = generate_without_graph(model, ids, attention_mask=mask, **GREEDY)
    assert torch.equal(model.generate(ids, attention_mask=mask, **GREEDY), wanted)
    assert replays[0].replays


def test_recorded_steps_continue_a_cache_and_its_copy(replays: list[Recorder]) -> None:
    model, ids = small("lola"), tokens(2, 30)
    first = model.generate(ids[:, :9], return_dict_in_generate=True, **GREEDY)
    kept = copy.deepcopy(first.past_key_values)
    longer = torch.cat((first.sequences, ids[:, 9:]), 1)
    more = GREEDY | {"attention_mask": torch.ones_like(longer)}
    generated = model.generate(longer, past_key_values=first.past_key_values, **more)
    assert torch.equal(model.generate(longer, past_key_values=kept, **more), generated)
    assert torch.equal(generate_without_graph(model, longer, **more), generated)
    assert all(replay.replays for replay in replays)


def test_recorded_steps_beyond_learned_positions_are_refused(replays: list[Recorder]) -> None:
    """A replay does not check positions, so the model does. A padded text may end beyond them."""
    made: Any = fresh("lolcats", embedding="learned", length=16)
    ids, mask = tokens(1, 9), torch.tensor([[0] * 2 + [1] * 7])
    assert torch.equal(
        made.generate(ids, **GREEDY | {"max_new_tokens": 8}), generate_without_graph(made, ids, **GREEDY | {"max_new_tokens": 8})
    )
    with pytest.raises(ValueError, match="token 17 of a document has no position"):
        made.generate(ids, **GREEDY)
    settings = GREEDY | {"attention_mask": mask}
    assert torch.equal(made.generate(ids, **settings), generate_without_graph(made, ids, **settings))
    assert all(replay.replays for replay in replays)


def test_steps_with_explicit_positions_are_not_recorded(replays: list[Recorder]) -> None:
    """Explicit positions are not part of a recorded step."""
    model, ids = small("lolcats"), tokens(2, 9)
    position = torch.arange(9).expand(2, -1) + 3
    wanted = generate_without_graph(model, ids, position_ids=position, **GREEDY)
    assert torch.equal(model.generate(ids, position_ids=position, **GREEDY), wanted)
    assert not replays[0].replays


@pytest.mark.parametrize("more", [{"output_hidden_states": True}, {"prefill_chunk_size": 4}, {"use_cache": False}])
def test_calls_with_unsupported_options_are_not_recorded(more: dict[str, Any], replays: list[Recorder]) -> None:
    model, ids = small("lolcats"), tokens(2, 9)
    settings = GREEDY | more | {"return_dict_in_generate": True}
    wanted = generate_without_graph(model, ids, **settings)
    generated = model.generate(ids, **settings)
    assert torch.equal(generated.sequences, wanted.sequences)
    assert not any(replay.replays for replay in replays)


def test_replays_do_not_overwrite_the_logits_of_earlier_steps(replays: list[Recorder]) -> None:
    """The next step does not overwrite a step's logits, states and columns."""
    model, ids = small("lolcats"), tokens(2, 15)
    with torch.no_grad():
        caches = [model(ids[:, :9], use_cache=True).past_key_values for _ in range(2)]
        wanted = [model(input_ids=ids[:, [column]], past_key_values=caches[0]).logits for column in range(9, 15)]
        recorder = model.recording(caches[1])
        actual = [model(input_ids=ids[:, [column]], past_key_values=caches[1]).logits for column in range(9, 15)]
    assert recorder.replays
    for first, other in zip(actual, wanted, strict=True):
        assert torch.equal(first, other)
    for layer in range(3):
        ours, theirs = caches[1].state(layer), caches[0].state(layer)
        assert ours.columns == theirs.columns == 15
        for name, tensor in ours.tensors.items():
            assert torch.equal(tensor, theirs.tensors[name])


def test_a_recorder_serves_only_plain_steps_of_its_model_without_gradients(replays: list[Recorder]) -> None:
    model, ids = small("lolcats"), tokens(2, 10)
    with torch.no_grad():
        cache = model(ids[:, :9], use_cache=True).past_key_values
    recorder, step = model.recording(cache), {"input_ids": ids[:, 9:]}
    with torch.no_grad():
        assert recorder.serves(model, step)
        assert not recorder.serves(small("lolcats"), step)
        assert not recorder.serves(model, {"input_ids": ids[:, 8:]})
        assert not recorder.serves(model, step | {"output_attentions": True})
        assert recorder.serves(model, step | {"return_dict": True})
        assert not recorder.serves(model, step | {"return_dict": False})
    assert not recorder.serves(model, step)


def test_nested_calls_of_generate_have_separate_recorders(replays: list[Recorder]) -> None:
    """``generate`` is called at each token of another call, as threads do. Each cache keeps the recorder of its own call."""
    model, ids, settings = small("lolcats"), tokens(2, 9), GREEDY | {"max_new_tokens": 5}
    wanted = generate_without_graph(model, ids, **settings)

    def within(written: torch.Tensor, _: Any) -> torch.Tensor:
        assert torch.equal(model.generate(ids, **settings), wanted)
        return torch.zeros(len(written), dtype=torch.bool)

    outer = model.generate(ids, stopping_criteria=StoppingCriteriaList([within]), **settings)
    assert torch.equal(outer, wanted)
    assert len(replays) == 1 + settings["max_new_tokens"]
    assert all(replay.replays for replay in replays)


def test_returned_caches_have_no_recorder(replays: list[Recorder]) -> None:
    """A returned cache has no recorder, nor has one that was passed in or whose call failed. A recorder keeps no cache alive."""
    model, ids = small("lolcats"), tokens(2, 12)
    first = model.generate(ids[:, :9], return_dict_in_generate=True, **GREEDY)
    alive = ref(first.past_key_values)
    assert first.past_key_values.recorder is None

    def failing(*_: Any) -> torch.Tensor:
        assert first.past_key_values.recorder is replays[-1]
        raise RuntimeError("enough")

    longer = torch.cat((first.sequences, ids[:, 9:]), 1)
    with pytest.raises(RuntimeError, match="enough"):
        model.generate(longer, past_key_values=first.past_key_values, stopping_criteria=StoppingCriteriaList([failing]), **GREEDY)
    assert first.past_key_values.recorder is None
    first = None
    gc.collect()
    assert alive() is None
    assert len(replays) == 2


def test_steps_that_wait_for_the_host_run_without_a_recording(replays: list[Recorder], monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = small("lolcats"), tokens(2, 9)
    wanted = generate_without_graph(model, ids, **GREEDY)

    def waiting(numbers: torch.Tensor) -> bool:
        return bool(numbers.max() >= 0) and False

    monkeypatch.setattr(ring, "may_read_numbers", waiting)
    with pytest.warns(FallsBack, match="a step of decode cannot be recorded"):
        assert torch.equal(model.generate(ids, **GREEDY), wanted)
    assert not replays[0].replays


def test_recorders_are_neither_copied_nor_pickled(replays: list[Recorder]) -> None:
    model, ids = small("lolcats"), tokens(2, 9)
    with torch.no_grad():
        cache = model(ids, use_cache=True).past_key_values
    recorder = model.recording(cache)
    assert copy.deepcopy(cache).recorder is None
    assert copy.deepcopy(recorder) is None
    assert pickle.loads(pickle.dumps(recorder)) is None


def test_steps_on_a_cpu_are_not_recorded() -> None:
    model = small("lolcats")
    assert model.use_graph
    assert not cuda_graph.may_record(model)


@pytest.mark.gpu
@pytest.mark.parametrize("spec", ["lolcats", "lola", "lawcat", "gated-delta", "latte-macchiato", "delta", "gla"])
@pytest.mark.parametrize("mode", MODES)
def test_a_cuda_graph_generates_the_same_text(spec: str, mode: str) -> None:
    model, ids = small(spec).float().cuda(), tokens(2, 9).cuda()
    torch.nn.Module.to(model, torch.float32)
    made: list[Recorder] = []
    whole = model.recording
    model.recording = lambda cache: made.append(whole(cache)) or made[-1]  # pyright: ignore[reportAttributeAccessIssue]
    wanted = generate_without_graph(model, ids, **MODES[mode])
    assert torch.equal(model.generate(ids, **MODES[mode]), wanted)
    assert [replay.replays for replay in made] == [True]
