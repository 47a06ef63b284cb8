"""A step of decode is one graph: torch.compile finds no graph break and no wait. Calls of several lengths also compile."""

from __future__ import annotations

from typing import Any

import pytest

from composer.spec.loading import load_spec
from tests.composer.model.models import CAUSAL
from tests.composer.model.shared_layers import covering, dealt, layers_of, printed_of
from tests.composer.model.trunks import TRUNKS
from tests.composer.programs import printed_behind_composer
from tests.covers import some

pytestmark = pytest.mark.long

PROGRAM = """
    import torch
    import composer
    from tests.composer.model.models import llama, tokens
    from tests.composer.model.trunks import model as fresh

    torch.set_grad_enabled(False)
    model = {model}
    compiled = torch.compile(model, fullgraph=True, backend="eager", dynamic=False)
    for rows, column, has_mask in {calls}:
        ids, mask, position = tokens(rows, column + 1), torch.ones(rows, column + 1), torch.arange(column + 1).repeat(rows, 1)
        mask[0, :3], position[0] = 0, (position[0] - 3).clamp(min=0)
        if rows > 1:
            mask[1, -1], position[2, -1] = 0, 0
        more = dict(attention_mask=mask, position_ids=position[:, -1:]) if has_mask else dict()
        caches = [model(ids[:, :column], attention_mask=mask[:, :column], use_cache=True).past_key_values for _ in range(2)]
        found = compiled(ids[:, column:], past_key_values=caches[0], **more).logits
        expected = model(ids[:, column:], past_key_values=caches[1], **more).logits
        real = mask[:, -1].bool() if has_mask else slice(None)
        torch.testing.assert_close(found[real], expected[real], rtol=1e-10, atol=1e-10)
        for layer in range({count}):
            found, expected = (cache.state(layer).tensors for cache in caches)
            torch.testing.assert_close(dict(found), dict(expected), rtol=1e-10, atol=1e-10)
    print("compared")
"""
"""The first step of all is one that is compiled. At column 10 a chunk of a terraced window of 5 begins, another is evicted.

In a step with mask and positions, one row has padding, and a document begins in another.
"""
CONVERSATION = """
    import torch
    import composer
    from tests.composer.model.models import llama, tokens

    torch.set_grad_enabled(False)
    model, ids = composer.build({spec!r}, llama(num_hidden_layers={count})), tokens(2, 30)
    compiled, expected, given = torch.compile(model, fullgraph=True, backend="eager"), model(ids).logits, dict()
    for start, end in {calls}:
        if end == start + 1:
            given["position_ids"] = torch.full((2, 1), start)
        answer = compiled(ids[:, start:end], **given)
        torch.testing.assert_close(answer.logits, expected[:, start:end], rtol=1e-9, atol=1e-9)
        given["past_key_values"] = answer.past_key_values
    print("compared")
"""
CALLS = ((4, 10, True), (1, 9, False))
"""Rows, the column of the step, and whether it receives a mask and positions."""
OTHERS = ((4, 10, False), (1, 9, True))
WITH_STATE = {"conv", "gate", "keep", "memory", "mix_input"}
"""The roles whose parts read or change a state, so that a step of decode runs other forms of them than a prefill does. All other
parts compute a step as they compute a prefill, which test_prefill_graph.py compiles with every part."""
BUILT = "composer.build({spec!r}, llama(num_hidden_layers={count}))"


def small(name: str) -> list[str]:
    """Return a spec whose memories overflow."""
    spec = load_spec(name)
    heads = {"head": spec.head} | {f"heads.{key}": head for key, head in spec.heads.items()}
    return [
        f"{where}.memory.{index}.size={5 if memory.bounded else 12}"
        for where, head in heads.items()
        for index, memory in enumerate(head.memory if head else ())
        if hasattr(memory, "size")
    ]


LAYERS = layers_of(CAUSAL, small)
MASKED, PLAIN = dealt(covering(LAYERS, WITH_STATE)), dealt(covering(LAYERS, {"memory"}))


@pytest.mark.parametrize("part", some(MASKED, list(MASKED)[::2]))
def test_a_masked_step_of_decode_is_one_graph(part: str) -> None:
    """This covers every part with a state, with four rows, a mask and positions."""
    assert printed_of(MASKED[part], PROGRAM.replace("{model}", BUILT), calls=CALLS[:1]) == "compared"


@pytest.mark.parametrize("part", some(PLAIN, list(PLAIN)[:1]))
def test_a_step_of_decode_is_one_graph(part: str) -> None:
    """This covers every kind of memory, with one row and neither a mask nor positions."""
    assert printed_of(PLAIN[part], PROGRAM.replace("{model}", BUILT), calls=CALLS[1:]) == "compared"


@pytest.mark.parametrize("trunk", TRUNKS)
def test_a_step_of_decode_on_each_trunk_is_one_graph(trunk: str) -> None:
    """The heads are softmax, since only the trunk differs from the models above. One trunk is also tested with the other two
    calls.
    """
    assert compare_on(TRUNKS[trunk], CALLS + OTHERS if trunk == "learned" else CALLS)


def test_padding_needs_no_learned_position_in_a_step_of_decode() -> None:
    assert compare_on(TRUNKS["learned"] | {"length": 10}, ((1, 10, False), (1, 10, True)))


@pytest.mark.parametrize(
    ("spec", "calls"),
    [
        pytest.param("latte-macchiato", ((0, 7), (7, 16), (16, 17)), marks=pytest.mark.full),
        ("softmax", ((0, 7), (7, 16), (16, 17), (17, 18))),
    ],
)
def test_calls_of_several_lengths_are_compiled_from_an_empty_cache(spec: str, calls: tuple[tuple[int, int], ...]) -> None:
    """The compiled call creates the cache, and a second length marks lengths as dynamic. Softmax's memory grows in two steps
    with positions.
    """
    assert printed_of(layers_of([spec], lambda _: []), CONVERSATION, calls=calls) == "compared"


def compare_on(trunk: dict[str, Any], calls: tuple[tuple[int, int, bool], ...]) -> bool:
    built = f"fresh('softmax', **{trunk | {'layers': 1}!r})"
    return printed_behind_composer(PROGRAM.format(model=built, calls=calls, count=1)) == "compared"


def test_published_and_paper_specs_are_compiled() -> None:
    assert {"published/liger-gla", "published/lolcats-llama"} <= set(CAUSAL)
    assert {"softmax", "lolcats", "lolcats-terraced", "lola", "lawcat", "gated-delta", "latte-macchiato"} <= set(CAUSAL)
