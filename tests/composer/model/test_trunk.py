"""Trunks from nothing: Llama's default equals Llama, the others equal their formulas, and absolute positions restart in each
document.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

import composer
from composer.errors import SpecError
from composer.model.own_host import RMSNorm
from tests.checkpoints import logits
from tests.composer.model.models import tokens
from tests.composer.model.trunks import HEADS, TRUNKS, document, model


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_the_default_trunk_equals_llama(tied: bool, bias: bool) -> None:
    built, ids = model(tied=tied, bias=bias, theta=500), tokens(2, 50)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
        attention_bias=bias,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
    )
    llama = LlamaForCausalLM(config).double().eval()
    llama.load_state_dict(built.state_dict(), strict=True)
    torch.testing.assert_close(logits(built, ids), logits(llama, ids), rtol=0, atol=1e-9)


def classic(ids: torch.Tensor, weights: dict[str, torch.Tensor]) -> torch.Tensor:
    """A trunk with LayerNorm, a plain MLP with exact GELU, learned positions, a tied output, and 4 query heads on 2 key heads."""

    def norm(states: torch.Tensor, name: str) -> torch.Tensor:
        centred = states - states.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    hidden = weights["model.embed_tokens.weight"][ids] + weights["model.embed_positions.weight"][: ids.shape[1]]
    for layer in ("model.layers.0", "model.layers.1"):
        inward = norm(hidden, f"{layer}.input_layernorm")
        query, key, value = (
            (inward @ weights[f"{layer}.self_attn.{name}_proj.weight"].T).unflatten(-1, (-1, 8)).transpose(1, 2) for name in "qkv"
        )
        key, value = key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)
        later = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
        mixed = (query @ key.mT / math.sqrt(8)).masked_fill(later, -math.inf).softmax(-1) @ value
        hidden = hidden + mixed.transpose(1, 2).flatten(2) @ weights[f"{layer}.self_attn.o_proj.weight"].T
        wide = norm(hidden, f"{layer}.post_attention_layernorm") @ weights[f"{layer}.mlp.up_proj.weight"].T
        hidden = hidden + wide * (1 + torch.erf(wide / math.sqrt(2))) / 2 @ weights[f"{layer}.mlp.down_proj.weight"].T
    return norm(hidden, "model.norm") @ weights["model.embed_tokens.weight"].T


def test_the_classic_trunk_equals_its_formula() -> None:
    sizes = {"width": 32, "layers": 2, "heads": 4, "key_heads": 2, "vocabulary": 97, "norm": "layer", "mlp": "plain"}
    spec = {"compose": 1, "name": "x", "head": {"position": "none", "memory": ["full"]}}
    built = composer.build(spec | {"trunk": sizes | {"embedding": "learned", "length": 40}}, fresh=True, dtype="float64", seed=3)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    ids, weights = tokens(2, 40), {name: tensor.detach() for name, tensor in built.named_parameters()}
    torch.testing.assert_close(logits(built, ids), classic(ids, weights), rtol=0, atol=1e-10)


@pytest.mark.parametrize("width", [32, 20])
def test_sinusoidal_positions_equal_their_formula(width: int) -> None:
    """With all other weights at 0, the hidden state is the positions."""
    built = model(embedding="sinusoidal", width=width, head_dim=8)
    ids = tokens(1, 9)
    states = built.model(ids, output_hidden_states=True).hidden_states[0] - built.model.embed_tokens(ids)
    expected = [
        [(math.cos if column % 2 else math.sin)(row / 10000 ** ((column - column % 2) / width)) for column in range(width)]
        for row in range(9)
    ]
    torch.testing.assert_close(states[0].detach(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("trunk", TRUNKS)
@pytest.mark.parametrize("head", HEADS)
def test_split_calls_equal_one_call(head: str, trunk: str) -> None:
    built, ids = model(head, **TRUNKS[trunk]), tokens(2, 24)
    expected, cache, pieces = logits(built, ids), None, []
    for start, end in ((0, 7), (7, 8), (8, 20), *((step, step + 1) for step in range(20, 24))):
        with torch.no_grad():
            answer = built(ids[:, start:end], past_key_values=cache, use_cache=True)
        cache = answer.past_key_values
        pieces.append(answer.logits)
    torch.testing.assert_close(torch.cat(pieces, 1), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("side", ["left", "right", "middle"])
@pytest.mark.parametrize("trunk", TRUNKS)
def test_padding_anywhere_changes_no_logits(trunk: str, side: str) -> None:
    built, ids = model("lolcats", **TRUNKS[trunk]), tokens(1, 12)
    at = {"left": [0, 1, 2], "right": [12, 13, 14], "middle": [0, 5, 9]}[side]
    mask = torch.ones(1, 15, dtype=torch.int64)
    mask[0, at] = 0
    padded = torch.zeros(1, 15, dtype=torch.int64)
    padded[mask.bool()] = ids[0]
    found_logits = logits(built, padded, attention_mask=mask)[mask.bool()]
    torch.testing.assert_close(found_logits, logits(built, ids)[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("trunk", TRUNKS)
def test_packed_documents_are_independent(trunk: str) -> None:
    built, documents = model("lawcat", **TRUNKS[trunk]), [tokens(1, length, seed=length) for length in (5, 1, 17)]
    alone = torch.cat([logits(built, text) for text in documents], 1)
    found_logits = logits(built, torch.cat(documents, 1), cu_seqlens=torch.tensor([0, 5, 6, 23]))
    torch.testing.assert_close(found_logits, alone, rtol=0, atol=1e-10)


@pytest.mark.parametrize("trunk", TRUNKS)
def test_left_padded_rows_generate_the_text_of_single_rows(trunk: str) -> None:
    built, settings = model("lolcats", **TRUNKS[trunk]), {"do_sample": False, "max_new_tokens": 12, "eos_token_id": None}
    rows = [tokens(1, length, seed=length)[0] for length in (4, 9)]
    ids = torch.stack([functional.pad(row, (9 - len(row), 0)) for row in rows])
    mask = torch.stack([functional.pad(torch.ones_like(row), (9 - len(row), 0)) for row in rows])
    together = built.generate(ids, attention_mask=mask, pad_token_id=0, **settings)
    for index, row in enumerate(rows):
        assert torch.equal(together[index, 9:], built.generate(row[None], **settings)[0, len(row) :])


def test_documents_longer_than_the_learned_positions_are_refused() -> None:
    built = model(embedding="learned", length=10)
    logits(built, tokens(1, 10))
    with pytest.raises(ValueError, match="token 11 of a document has no position: this model has learned 10 of them"):
        logits(built, tokens(1, 11))
    # Ten real tokens behind padding, and two documents of ten, are not too long.
    logits(built, tokens(1, 14), attention_mask=torch.tensor([[0] * 4 + [1] * 10]))
    logits(built, tokens(1, 20), position_ids=torch.arange(20)[None] % 10)


@pytest.mark.parametrize("trunk", TRUNKS)
@pytest.mark.parametrize("head", HEADS)
def test_a_training_step_reaches_every_parameter(head: str, trunk: str) -> None:
    built, ids = model(head, dropout=0.1, **TRUNKS[trunk]).train(), tokens(2, 20)
    optimiser = torch.optim.SGD(built.parameters(), lr=1e-2)
    loss = built(ids, labels=ids).loss
    loss.backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in built.parameters())
    optimiser.step()
    assert logits(built.eval(), ids).isfinite().all()


def test_dropout_applies_only_in_training() -> None:
    built, ids = model(dropout=0.5), tokens(1, 9)
    plain = model()
    assert torch.equal(logits(built, ids), logits(plain, ids))
    built.train(), plain.train()
    assert not torch.equal(logits(built, ids), logits(built, ids))
    before = torch.get_rng_state()
    assert torch.equal(logits(plain, ids), logits(plain, ids))
    assert torch.equal(torch.get_rng_state(), before), "without dropout no random number is drawn"


@pytest.mark.parametrize("trunk", TRUNKS)
def test_trunks_load_from_a_folder_and_initialise_from_their_config(trunk: str, tmp_path) -> None:
    built, ids = model("lawcat", **TRUNKS[trunk]), tokens(1, 9)
    built.save_pretrained(tmp_path)
    loaded, report = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto", output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert all(torch.equal(first, other) for first, other in zip(loaded.parameters(), built.parameters(), strict=True))
    torch.testing.assert_close(logits(loaded, ids), logits(built, ids), rtol=0, atol=1e-12)
    anew = AutoModelForCausalLM.from_config(built.config)
    assert all(parameter.isfinite().all() for parameter in anew.parameters())
    assert all((parameter == ("weight" in name)).all() for name, parameter in anew.named_parameters() if "norm" in name)


def test_a_trunk_is_a_source_for_other_heads() -> None:
    teacher, ids = model(**TRUNKS["learned"]), tokens(2, 30)
    spec = {"compose": 1, "name": "y", "head": HEADS["softmax"]}
    student = composer.build(spec, teacher)
    torch.testing.assert_close(logits(student, ids), logits(teacher, ids), rtol=0, atol=1e-12)
    assert student.config.read_spec().trunk is None
    assert composer.build(spec | {"head": HEADS["lolcats"]}, teacher)(ids).logits.isfinite().all()
    with pytest.raises(SpecError, match="which the source's would contradict"):
        composer.build(document(), teacher)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_norm_equals_llamas_bit_for_bit(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    own, llamas, hidden = RMSNorm(24, 1e-6).to(dtype), LlamaRMSNorm(24, 1e-6).to(dtype), torch.randn(2, 5, 24, dtype=dtype)
    with torch.no_grad():
        llamas.weight.copy_(own.weight.normal_())
    assert torch.equal(own(hidden), llamas(hidden))
