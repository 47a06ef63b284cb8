"""Texts are drawn from the model's distribution, and depend on the seed alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from composer.data.sampling import sample_texts
from composer.errors import DataError
from tests.composer.programs import ROOT

TEACHER = ROOT / "examples" / "teacher"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(TEACHER)


@pytest.fixture(scope="module")
def model(tokenizer: Any) -> LlamaForCausalLM:
    """A random model with a broad distribution."""
    torch.manual_seed(0)
    small: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(tokenizer), num_key_value_heads=1, initializer_range=0.5, **small)
    return LlamaForCausalLM(config).eval()


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_token_frequencies_equal_the_models_probabilities(model: Any, tokenizer: Any, temperature: float) -> None:
    """The first token is drawn from the whole vocabulary, and not only from the most likely tokens."""
    texts = list(sample_texts(model, tokenizer, 6000, 2, temperature=temperature, batch=2000))
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[tokenizer.bos_token_id]])).logits[0, 0]
    chances: Counter[str] = Counter()  # two tokens may be written alike
    for token, chance in enumerate((logits.double() / temperature).softmax(-1).tolist()):
        chances[tokenizer.decode([token], skip_special_tokens=True)] += chance
    del chances[""]  # such a text is drawn again
    counts, all_chances = Counter(texts), chances.total()
    distance = sum(abs(counts[word] / len(texts) - chance / all_chances) for word, chance in chances.items()) / 2
    assert distance < 0.15
    tail = {word: chance / all_chances for word, chance in chances.most_common()[50:]}
    assert sum(tail.values()) > 0.1
    assert sum(counts[word] for word in tail) / len(texts) == pytest.approx(sum(tail.values()), abs=0.03)


def test_the_first_texts_do_not_depend_on_the_number_of_texts(model: Any, tokenizer: Any) -> None:
    many = list(sample_texts(model, tokenizer, 11, 12, batch=4, seed=3))
    assert list(sample_texts(model, tokenizer, 6, 12, batch=4, seed=3)) == many[:6]
    assert list(sample_texts(model, tokenizer, 11, 12, batch=4, seed=4)) != many
    assert len(set(many)) == 11
    assert all(len(tokenizer(text).input_ids) <= 12 for text in many)


def test_the_callers_random_state_is_unchanged(model: Any, tokenizer: Any) -> None:
    """The caller's random state neither changes nor influences the texts, also between two batches."""
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    texts = sample_texts(model, tokenizer, 5, 8, batch=4, seed=3)
    drawn = []
    for place in range(3):
        next(texts)
        drawn.append(torch.rand(1))
        if place == 2:
            rest = list(texts)
    assert torch.equal(torch.cat(drawn), wanted)
    assert rest == list(sample_texts(model, tokenizer, 5, 8, batch=4, seed=3))[3:]


def test_models_that_sample_no_tokens_are_refused(model: Any, tokenizer: Any) -> None:
    class Mute:
        device = torch.device("cpu")
        generation_config = model.generation_config
        get_input_embeddings = staticmethod(model.get_input_embeddings)

        def generate(self, input_ids: torch.Tensor, **options: Any) -> torch.Tensor:
            return torch.cat([input_ids, torch.full_like(input_ids, options["eos_token_id"][0])], 1)

    with pytest.raises(DataError, match="ends its texts where they begin"):
        next(sample_texts(Mute(), tokenizer, 3, 8))


def test_models_without_a_start_token_are_refused(model: Any) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(TEACHER)
    tokenizer.bos_token = None
    with pytest.raises(DataError, match="no BOS token"):
        next(sample_texts(model, tokenizer, 3, 8))
