"""No step of ``generate`` waits on the host for a number, since the cache keeps what mask and positions say."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from composer.model.cache import cache_among
from composer.model.modeling import ComposedForCausalLM
from tests.composer.model.models import FEW, tokens
from tests.composer.model.recording import WAITING, on_a_cpu
from tests.composer.model.test_in_place import small
from tests.composer.model.trunks import model as fresh

GREEDY: dict[str, Any] = {"do_sample": False, "eos_token_id": None, "max_new_tokens": 5}
MODES: dict[str, dict[str, Any]] = {
    "greedy": GREEDY,
    "beams": GREEDY | {"num_beams": 3},
    "prefill in chunks": GREEDY | {"prefill_chunk_size": 3},
    "several answers": GREEDY | {"do_sample": True, "num_return_sequences": 3},
}
MASK = torch.tensor([[0] * 4 + [1] * 5, [1] * 9])


class Waits(TorchDispatchMode):
    """Count the operations that wait."""

    def __init__(self, counted: Counter[str]) -> None:
        super().__init__()
        self.counted = counted

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counted[func._schema.name] += func._schema.name in WAITING
        return func(*args, **(kwargs or {}))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return how often steps have waited, by operation, and the number of steps. Python may not read numbers, as on a GPU."""
    counts: Counter[str] = Counter()

    def call(self: ComposedForCausalLM, *arguments: Any, **options: Any) -> Any:
        ids, cache = options["input_ids"], cache_among(options)
        if ids.shape[1] > 1 or cache is None or not cache.get_seq_length():
            return whole(self, *arguments, **options)
        counts["steps"] += 1
        with Waits(counts):
            return whole(self, *arguments, **options)

    whole = ComposedForCausalLM.__call__
    on_a_cpu(monkeypatch)
    monkeypatch.setattr(ComposedForCausalLM, "use_graph", False)
    monkeypatch.setattr(ComposedForCausalLM, "__call__", call)
    return counts


def waiting(counted: Counter[str]) -> set[str]:
    assert counted["steps"] >= 3
    return {name for name, times in counted.items() if times and name != "steps"}


@pytest.mark.parametrize("spec", FEW)
def test_steps_of_padded_rows_do_not_wait_for_the_host(spec: str, counted: Counter[str]) -> None:
    small(spec).generate(tokens(2, 9), attention_mask=MASK, **GREEDY)
    assert not waiting(counted)


@pytest.mark.parametrize("mode", MODES)
def test_steps_with_learned_positions_do_not_wait_in_any_mode(mode: str, counted: Counter[str]) -> None:
    made: Any = fresh("lolcats", embedding="learned", length=64)
    ids = tokens(2, 9)
    torch.manual_seed(7)
    generated = made.generate(ids, attention_mask=MASK, **MODES[mode])
    assert not waiting(counted)
    torch.manual_seed(7)
    plain = {name: value for name, value in MODES[mode].items() if name != "prefill_chunk_size"}
    assert torch.equal(generated, made.generate(ids, attention_mask=MASK, use_cache=False, **plain))


def test_steps_of_continued_texts_do_not_wait(counted: Counter[str]) -> None:
    """A padded text continues with several tokens, also with padding between them."""
    model, ids = small("lolcats"), tokens(2, 30)
    first = model.generate(ids[:, :9], attention_mask=MASK, return_dict_in_generate=True, **GREEDY)
    longer = torch.cat((first.sequences, ids[:, 9:20]), dim=1)
    mask = torch.cat((MASK, torch.ones(2, longer.shape[1] - 9, dtype=torch.int64)), dim=1)
    mask[1, -9:-6] = 0
    counted.clear()
    generated = model.generate(longer, attention_mask=mask, past_key_values=first.past_key_values, **GREEDY)
    assert not waiting(counted)
    assert torch.equal(generated, model.generate(longer, attention_mask=mask, use_cache=False, **GREEDY))


def test_steps_continue_from_explicit_positions(counted: Counter[str]) -> None:
    """With a second document in the prompt, the steps use the given positions."""
    model, ids = small("lolcats"), tokens(1, 9)
    position = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
    generated = model.generate(ids, position_ids=position, **GREEDY)
    assert torch.equal(generated[:, 9:], model.generate(ids[:, 4:], **GREEDY)[:, 5:])


def test_texts_longer_than_the_learned_positions_are_refused(counted: Counter[str]) -> None:
    made: Any = fresh("lolcats", embedding="learned", length=12)
    made.generate(tokens(1, 9), **GREEDY | {"max_new_tokens": 4})
    with pytest.raises(ValueError, match="token 13 of a document has no position"):
        made.generate(tokens(1, 9), **GREEDY)
    # Ten real tokens behind two of padding are not too long, and neither are the two that follow.
    mask = torch.tensor([[0] * 2 + [1] * 9])
    made.generate(tokens(1, 11), attention_mask=mask, **GREEDY | {"max_new_tokens": 4})
