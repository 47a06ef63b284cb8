"""transformers' generation works on states: cached equals uncached in every mode, and unsupported arguments are rejected."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from composer.errors import SpecError
from tests.composer.model.models import FEW, OTHER_CACHES, llama, student, tokens

SPECS = {
    "softmax": (),
    "lolcats": ("head.memory.0.size=5",),
    "lawcat": (),
    "gla": (),
    "hybrid": ("head.memory.0.size=5",),
}
GREEDY: dict[str, Any] = {"do_sample": False, "eos_token_id": None, "max_new_tokens": 8}  # more than a window of 5 has
MODES: dict[str, dict[str, Any]] = {
    "greedy": GREEDY,
    "beams": GREEDY | {"num_beams": 3},
    "sampling": GREEDY | {"do_sample": True, "temperature": 1.3},
    "prefill in chunks": GREEDY | {"prefill_chunk_size": 4},
    "several answers": GREEDY | {"do_sample": True, "num_return_sequences": 3},
}


PAIRS = [(spec, mode) for mode in ("greedy", "beams") for spec in SPECS]
PAIRS += [("softmax", "sampling"), ("lolcats", "prefill in chunks"), ("lawcat", "several answers")]
PAIRS += [("gla", "prefill in chunks"), ("hybrid", "sampling")]
"""Greedy text and beams of every spec, since beams exchange the states of rows; each other mode of one spec or two."""


@pytest.mark.parametrize(("spec", "mode"), PAIRS)
def test_generation_with_a_cache_equals_generation_without(spec: str, mode: str) -> None:
    model, ids = student(spec, *SPECS[spec]), tokens(2, 13)
    texts = []
    for use_cache in (True, False):
        settings = {key: value for key, value in MODES[mode].items() if use_cache or key != "prefill_chunk_size"}
        torch.manual_seed(7)
        texts.append(model.generate(ids, use_cache=use_cache, **settings))
    assert torch.equal(*texts)


@pytest.mark.parametrize(("spec", "length"), [("lawcat", 13), ("hybrid", 13), ("lolcats", 150)])
def test_assisted_generation_writes_the_text_that_it_writes_without_a_draft(spec: str, length: int) -> None:
    """A student drafts for its teacher, and is the target of prompt lookup and of another student. A prompt of 150 tokens is read
    before calls are recorded. The text repeats itself, so that drafts are accepted in part."""
    model, other, teacher = student(spec, *SPECS[spec]), student("lolcats", "head.memory.0.size=5"), llama()
    ids = tokens(1, 10).repeat(1, 15)[:, :length]
    settings = GREEDY | {"max_new_tokens": 16, "eos_token_id": 96}  # transformers 5.10 needs one
    teachers, own = (target.generate(ids, **settings) for target in (teacher, model))
    assert torch.equal(teacher.generate(ids, assistant_model=model, **settings), teachers)
    assert torch.equal(model.generate(ids, prompt_lookup_num_tokens=4, **settings), own)
    assisted = model.generate(ids, assistant_model=other, return_dict_in_generate=True, **settings)
    assert torch.equal(assisted.sequences, own)
    text, mask = assisted.sequences, torch.ones_like(assisted.sequences)
    continued = model.generate(text, attention_mask=mask, past_key_values=assisted.past_key_values, **settings)
    assert torch.equal(continued, model.generate(text, attention_mask=mask, **settings))
    assert not assisted.past_key_values.is_recording


@pytest.mark.parametrize("spec", SPECS)
def test_left_padding_does_not_change_generated_text(spec: str) -> None:
    model = student(spec, *SPECS[spec])
    rows = [tokens(1, length, seed=length)[0] for length in (4, 11, 7)]
    width = max(len(row) for row in rows)
    ids = torch.stack([torch.cat((torch.zeros(width - len(row), dtype=torch.int64), row)) for row in rows])
    mask = (torch.arange(width) >= torch.tensor([width - len(row) for row in rows])[:, None]).long()
    together = model.generate(ids, attention_mask=mask, **GREEDY)
    for index, row in enumerate(rows):
        alone = model.generate(row[None], **GREEDY)
        assert torch.equal(together[index, width:], alone[0, len(row) :])


@pytest.mark.parametrize("side", ["left", "right", "middle"])
@pytest.mark.parametrize("spec", SPECS)
def test_padding_anywhere_changes_no_logits(spec: str, side: str) -> None:
    model, ids = student(spec, *SPECS[spec]), tokens(1, 12)
    at = {"left": [0, 1, 2], "right": [12, 13, 14], "middle": [0, 5, 9]}[side]
    mask = torch.ones(1, 15, dtype=torch.int64)
    mask[0, at] = 0
    padded = torch.zeros(1, 15, dtype=torch.int64)
    padded[mask.bool()] = ids[0]
    with torch.no_grad():
        logits = model(padded, attention_mask=mask).logits[mask.bool()]
        torch.testing.assert_close(logits, model(ids).logits[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("spec", SPECS)
def test_a_second_call_continues_from_the_cache(spec: str) -> None:
    """The cache of a first call is passed to a second call with more text."""
    model, ids = student(spec, *SPECS[spec]), tokens(2, 30)
    first = model.generate(ids[:, :9], return_dict_in_generate=True, **GREEDY)
    longer = torch.cat((first.sequences, ids[:, 9:]), 1)
    # Without a mask transformers takes a token that happens to be the padding's for padding.
    settings = GREEDY | {"attention_mask": torch.ones_like(longer)}
    again = model.generate(longer, past_key_values=first.past_key_values, **settings)
    assert torch.equal(again, model.generate(longer, use_cache=False, **settings))


def test_new_tokens_alone_continue_from_the_cache() -> None:
    """The mask has the columns of all tokens."""
    model, ids = student("lolcats", *SPECS["lolcats"]), tokens(2, 30)
    first = model.generate(ids[:, :9], return_dict_in_generate=True, **GREEDY)
    new = torch.cat((first.sequences[:, -1:], ids[:, 9:]), 1)
    mask = torch.ones(2, first.sequences.shape[1] + 21, dtype=torch.int64)
    generated = model.generate(new, past_key_values=first.past_key_values, attention_mask=mask, **GREEDY)
    whole = torch.cat((first.sequences, ids[:, 9:]), 1)
    wanted = model.generate(whole, use_cache=False, attention_mask=mask, **GREEDY)
    assert torch.equal(generated[:, 22:], wanted[:, whole.shape[1] :])


@pytest.mark.parametrize("spec", ["softmax", "lolcats", "gla"])
def test_a_cache_that_has_seen_the_whole_input_is_refused(spec: str) -> None:
    """This holds for every argument with the input, and for every way to generate."""
    model, ids = student(spec, *SPECS[spec]), tokens(2, 9)
    first = model.generate(ids, return_dict_in_generate=True, **GREEDY)
    cache, text = first.past_key_values, first.sequences
    assert cache.get_seq_length() == 16
    embeddings = model.get_input_embeddings()(ids)
    for options in ({"inputs": ids}, {"input_ids": text[:, :-1]}, {"inputs_embeds": embeddings}, {"inputs": text[:, -1:]}):
        for more in ({}, {"num_beams": 2}, {"prefill_chunk_size": 4}, {"do_sample": True}):
            with pytest.raises(ValueError, match="the cache has seen 16 tokens, and the input has [0-9]+: none is new"):
                model.generate(**options, past_key_values=cache, **GREEDY | more)
    with pytest.raises(ValueError, match="has seen 16 tokens, the input has 1 new ones, and attention_mask has 9 columns"):
        model.generate(text[:, -1:], past_key_values=cache, attention_mask=torch.ones(2, 9), **GREEDY)
    assert cache.get_seq_length() == 16, "the cache is as it was"
    assert model.generate(text, past_key_values=cache, **GREEDY).shape == (2, 25)


@torch.no_grad()
@pytest.mark.parametrize("spec", SPECS)
def test_split_calls_with_jumps_of_positions_equal_one_call(spec: str) -> None:
    """Several calls equal one call, with and without padding, and with a jump of positions at the start of a call."""
    model, ids, position = student(spec, *SPECS[spec]), tokens(2, 30), torch.arange(30).repeat(2, 1)
    position[:, 9:] += 100
    position[:, 20:] += 100
    mask = torch.ones_like(ids)
    mask[0, [0, 14, 15, 22]] = 0
    whole, cache = model(ids, position_ids=position, attention_mask=mask).logits, None
    for start, end in ((0, 9), (9, 20), (20, 21), (21, 22), (22, 30)):
        columns = slice(start, end)
        logits = model(ids[:, columns], position_ids=position[:, columns], attention_mask=mask[:, :end], past_key_values=cache)
        real, cache = mask[:, columns].bool(), logits.past_key_values
        torch.testing.assert_close(logits.logits[real], whole[:, columns][real], rtol=0, atol=1e-10)


@pytest.mark.parametrize("how", ["position_ids", "cu_seqlens"])
@pytest.mark.parametrize("spec", SPECS)
def test_packed_documents_are_independent(spec: str, how: str) -> None:
    model, documents = student(spec, *SPECS[spec]), [tokens(1, length, seed=length) for length in (5, 1, 17)]
    if how == "position_ids":
        packing = {"position_ids": torch.cat([torch.arange(document.shape[1]) for document in documents])[None]}
    else:
        packing = {"cu_seqlens": torch.tensor([0, 5, 6, 23])}
    with torch.no_grad():
        logits = model(torch.cat(documents, 1), **packing).logits
        alone = torch.cat([model(document).logits for document in documents], 1)
    torch.testing.assert_close(logits, alone, rtol=0, atol=1e-10)


@torch.no_grad()
def test_padding_in_packed_rows_belongs_to_no_document() -> None:
    """Documents may begin with padding, or have nothing else."""
    model, ids = student("lolcats-terraced", "head.memory.0.size=3"), tokens(1, 23)
    mask = torch.ones_like(ids)
    mask[:, [3, 9, 10, 16, 17, 18, 22]] = 0
    logits = model(ids, attention_mask=mask, cu_seqlens=torch.tensor([0, 9, 16, 19, 23])).logits
    for begin, end in ((0, 9), (9, 16), (19, 23)):
        real = mask[0, begin:end].bool()
        alone = model(ids[:, begin:end][:, real]).logits
        torch.testing.assert_close(logits[:, begin:end][:, real], alone, rtol=0, atol=1e-10)


@pytest.mark.parametrize("spec", SPECS)
def test_loss_is_cross_entropy_and_checkpointing_keeps_its_gradients(spec: str) -> None:
    model, ids = student(spec, *SPECS[spec]).train(), tokens(2, 20)
    labels = ids.clone()
    labels[:, :5] = -100
    answer = model(ids, labels=labels)
    expected = torch.nn.functional.cross_entropy(answer.logits[:, 4:-1].flatten(0, 1), ids[:, 5:].flatten())
    torch.testing.assert_close(answer.loss, expected.to(answer.loss.dtype), rtol=1e-6, atol=1e-6)
    answer.loss.backward()
    plain = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad()
    model.gradient_checkpointing_enable()
    model(ids, labels=labels).loss.backward()
    for name, parameter in model.named_parameters():
        if name in plain:
            torch.testing.assert_close(parameter.grad, plain[name], rtol=1e-8, atol=1e-10)
    fresh = [name for name, _ in model.named_parameters() if ".composed." in name]
    assert all(name in plain for name in fresh)


@torch.no_grad()
def test_checkpointed_layers_refuse_a_cache_in_training() -> None:
    """transformers drops the cache in checkpointed layers in training, so the earlier text would be ignored. In evaluation the
    cache is used.
    """
    model, ids = student("gla"), tokens(2, 12)
    expected, cache = model(ids).logits[:, 6:], model(ids[:, :6]).past_key_values
    model.gradient_checkpointing_enable()
    with pytest.raises(ValueError, match="accept no cache in training"):
        model.train()(ids[:, 6:], past_key_values=cache)
    torch.testing.assert_close(model.eval()(ids[:, 6:], past_key_values=cache).logits, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("spec", SPECS)
def test_autocast_is_close_to_float32(spec: str) -> None:
    """Projections are rounded to 8 bits and sums are not, so outputs differ by a few times 2^-8 of their size."""
    model, ids = student(spec, *SPECS[spec]).float(), tokens(2, 70)
    with torch.no_grad():
        expected = model.model(ids).last_hidden_state
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model.model(ids).last_hidden_state
    assert (logits.float() - expected).norm() <= 0.05 * expected.norm()


@pytest.mark.parametrize("spec", FEW)
def test_a_cache_continues_when_autocast_begins_or_ends(spec: str) -> None:
    """The calls are a prefill in float32, a piece and a token under autocast, and a token in float32."""
    model, ids, cache, outputs = student(spec, "trunk=null").float(), tokens(2, 40), None, []
    with torch.no_grad():
        expected = model.model(ids).last_hidden_state
        for index, piece in enumerate(ids.split((30, 8, 1, 1), dim=1)):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=index in {1, 2}):
                answer = model.model(piece, past_key_values=cache, use_cache=True)
            cache = answer.past_key_values
            outputs.append(answer.last_hidden_state.float())
    assert (torch.cat(outputs, dim=1) - expected).norm() <= 0.05 * expected.norm()


def test_autocast_keeps_states_in_float32() -> None:
    model = student("lawcat", "head.feature_map.kind=exp").float()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        cache = model(tokens(1, 9), use_cache=True).past_key_values
    kinds = {name.rpartition(".")[2]: tensor.dtype for name, tensor in cache.state(0).tensors.items()}
    assert kinds["state"] == kinds["maximum"] == torch.float32


def test_the_cache_has_the_state_bytes_of_explain() -> None:
    from composer.spec.explain import explain_resolved

    for spec, overrides in SPECS.items():
        model = student(spec, *overrides)
        for length in (3, 40):
            with torch.no_grad():
                cache = model(tokens(2, length), use_cache=True).past_key_values
            explained = explain_resolved(model.config.read_spec(), sequence=length, dtype="float64")
            assert cache.bytes() == 2 * explained.state_bytes


def test_invalid_arguments_are_refused() -> None:
    model, ids = student("lawcat"), tokens(1, 5)
    for make in OTHER_CACHES:
        cache = make(model.config)
        for call in (model, partial(model.generate, **GREEDY)):
            with pytest.raises(TypeError, match=f"the cache is a {type(cache).__name__}, .*its own states"):
                call(ids, past_key_values=cache)
    with pytest.raises(ValueError, match="cache_implementation"):
        model.generate(ids, cache_implementation="static", **GREEDY)
    with pytest.raises(TypeError, match="does not accept colour"):
        model(ids, colour="red")
    with pytest.raises(ValueError, match="attention_mask has shape"):
        model(ids, attention_mask=torch.ones(1, 1, 5, 5))
    with pytest.raises(ValueError, match="exactly one"):
        model()
    with pytest.raises(ValueError, match="cu_seqlens must rise"):
        model(ids, cu_seqlens=torch.tensor([0, 9]))
    with pytest.raises(ValueError, match=r"position_ids has shape \(1, 4\); expected \(1, 5\), or one row for all"):
        model(ids, position_ids=torch.arange(4)[None])
    for length in (1, 5):
        with pytest.raises(ValueError, match="the cache holds 1 rows, and this call has 2"):
            model(tokens(2, length), past_key_values=model(ids).past_key_values)
    with pytest.raises(ValueError, match=r"the cache is of another model: it has no 'head\.conv\.query' in a layer"):
        model(ids, past_key_values=student("gla")(ids).past_key_values)
    with pytest.raises(ValueError, match="cannot forget its last 2 tokens: it has recorded 0"):
        model(ids).past_key_values.crop(-2)
    with pytest.raises(ValueError, match="it cannot continue a cache"):
        model.generate(tokens(1, 9), past_key_values=model(ids).past_key_values, prompt_lookup_num_tokens=3)


def test_a_broken_configuration_is_refused() -> None:
    from composer.model.configuration import ComposedConfig

    with pytest.raises(ValueError, match="has no spec"):
        ComposedConfig().read_spec()
    config = student("lawcat").config
    config.spec_hash = "0" * 64
    with pytest.raises(ValueError, match="has the hash"):
        config.read_spec()
    with pytest.raises(SpecError):
        student("lawcat", "head.memory.0.gate.rank=0")


def test_saved_models_load_by_the_auto_classes(tmp_path) -> None:
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    model, ids = student("hybrid"), tokens(1, 20)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    assert AutoConfig.from_pretrained(tmp_path).read_spec().hash == model.config.spec_hash
    assert type(AutoModel.from_pretrained(tmp_path)).__name__ == "ComposedModel"
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, model(ids).logits, rtol=0, atol=0)


def test_a_student_of_a_student_keeps_equal_parameters() -> None:
    import composer

    first = student("lolcats")
    second = composer.build("lolcats", first, overrides=["head.memory.0.weight=null"])
    kept = dict(second.named_parameters())
    for name, parameter in first.named_parameters():
        if "window.weight" not in name:
            assert torch.equal(kept[name], parameter)
    assert not any("window.weight" in name for name in kept)
    assert torch.equal(
        composer.build("softmax", first)(tokens(1, 9)).logits, composer.build("softmax", llama())(tokens(1, 9)).logits
    )


def test_generate_accepts_a_tokenizer() -> None:
    """transformers passes it from ``generate`` to the model."""
    model, ids = student("lolcats"), tokens(1, 9)
    options = {"max_new_tokens": 3, "do_sample": False, "eos_token_id": None}
    assert torch.equal(model.generate(ids, tokenizer=object(), **options), model.generate(ids, **options))
