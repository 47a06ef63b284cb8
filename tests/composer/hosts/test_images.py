"""A softmax student of a model that reads images is its source, with an image and without; other students keep its other parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor, AutoTokenizer, CLIPImageProcessor, LlavaProcessor
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import composer
from composer.errors import BuildError, ComposerError, SourceError
from composer.model.cache import CACHE
from composer.vllm.folder import check_servable
from composer.weights.verify import verify
from converters.hosts import WHOLE
from tests.composer.hosts.multimodal import IMAGE, multimodal, text_and_image
from tests.composer.programs import printed_behind_composer
from tests.covers import some

pytestmark = pytest.mark.long

KEPT: dict[str, Any] = {
    "compose": 1,
    "name": "kept",
    "head": {"memory": ["state"], "feature_map": "elu"},
    "layers": [{"at": "all", "use": "source"}],
}
TEACHER = Path(__file__).parents[3] / "examples" / "teacher"


def near(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-5)


def written(model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    return model.generate(**inputs, max_new_tokens=6, do_sample=False, pad_token_id=0)


UNLIKE = ("cohere2_vision", "gemma3", "idefics3", "llava", "paligemma", "qwen2_5_vl", "qwen3_vl")
"""Of families with the same decoder, or the same way to put images into a text, one."""


@pytest.mark.parametrize("family", some(WHOLE, UNLIKE))
@torch.no_grad()
def test_softmax_students_equal_their_source(family: str, tmp_path: Path) -> None:
    source: Any = multimodal(family)
    source.save_pretrained(tmp_path / "source")
    composer.build_folder("softmax", tmp_path / "source", tmp_path / "built")
    built = composer.load(tmp_path / "built")
    inputs = text_and_image(family, source)
    expected = source(**inputs, use_cache=False).logits
    text = {"input_ids": inputs["input_ids"].masked_fill(inputs["input_ids"] == IMAGE, 7)}
    plain = source(**text, use_cache=False).logits
    assert (expected - plain).abs().max() > 0.1, "the image has an effect"
    near(built(**inputs).logits, expected)
    near(built(**text).logits, plain)
    cut = {name: value[:, :-4] if value.shape[:2] == inputs["input_ids"].shape else value for name, value in inputs.items()}
    answer = built(**cut, use_cache=True)
    logits = [answer.logits]
    for token in inputs["input_ids"][:, -4:].split(1, dim=1):
        answer = built(input_ids=token, **{CACHE: answer[CACHE]}, use_cache=True)
        logits.append(answer.logits)
    near(torch.cat(logits, dim=1), expected)
    padded = text_and_image(family, source, padding=3)
    real = padded["attention_mask"].bool()
    near(built(**padded).logits[real], source(**padded, use_cache=False).logits[real])
    assert torch.equal(written(built, padded), written(source, padded))
    assert torch.equal(written(built, text), written(source, text))
    built.save_pretrained(tmp_path / "again")
    again = AutoModelForImageTextToText.from_pretrained(tmp_path / "again").eval()
    assert torch.equal(again(**inputs).logits, built(**inputs).logits)
    assert verify(tmp_path / "built").ok
    assert verify(tmp_path / "again").ok


@torch.no_grad()
def test_tokens_of_an_image_see_each_other() -> None:
    """In Gemma 3. Two images side by side, in layers with a window and without, are two blocks."""
    source: Any = multimodal("gemma3")
    student = composer.build("softmax", source)
    inputs = text_and_image("gemma3", source)
    inputs["token_type_ids"][1, 6] = 0  # two blocks in this row
    expected = source(**inputs, use_cache=False).logits
    near(student(**inputs).logits, expected)
    causal = {name: value for name, value in inputs.items() if name != "token_type_ids"}
    assert (source(**causal, use_cache=False).logits - expected).abs().max() > 0.1
    near(composer.build(KEPT, source)(**inputs).logits, expected)
    windows = composer.build("lolcats", source, overrides=["head.memory.0.size=4"])
    assert torch.equal(windows(**inputs).logits, windows(**causal).logits), "other memories are causal"
    with pytest.raises(ValueError, match="tokens of an image see later ones"):
        student(**inputs, output_attentions=True)


@torch.no_grad()
def test_a_continued_text_is_causal() -> None:
    """PaliGemma reads the kinds of tokens in a first call alone."""
    source: Any = multimodal("paligemma")
    student = composer.build("softmax", source)
    first = text_and_image("paligemma", source)
    more = {"input_ids": first["input_ids"][:, :5], "token_type_ids": torch.zeros(2, 5, dtype=torch.long)}
    logits = []
    for model in (student, source):
        cache = model(**first, use_cache=True)[CACHE]
        logits.append(model(**more, **{CACHE: cache}, use_cache=True).logits)
    near(*logits)


@torch.no_grad()
def test_tokens_rotate_by_their_place_in_an_image() -> None:
    """In Qwen's models. Memories hold keys as they were rotated, so heads that rotate them again are refused."""
    source: Any = multimodal("qwen2_5_vl")
    inputs = text_and_image("qwen2_5_vl", source, padding=3)
    student = composer.build("lolcats", source, overrides=["head.memory.0.size=4"])
    real = inputs["attention_mask"].bool()
    whole = student(**inputs).logits
    pieces = {name: value[1:2] for name, value in inputs.items() if name != "pixel_values"} | {
        "pixel_values": inputs["pixel_values"][16:]
    }
    near(student(**pieces).logits[0], whole[1])
    flat = {name: value for name, value in inputs.items() if name in ("input_ids", "attention_mask")}
    assert (student(**flat).logits[real] - whole[real]).abs().max() > 0.1
    own = ["head.memory.0.size=4", "head.memory.1.position=none"]
    with pytest.raises(BuildError, match="rotates keys by the place of a token in its image"):
        composer.build("lolcats", source, overrides=own)


@torch.no_grad()
def test_image_students_equal_their_source_in_memory_and_in_another_process(tmp_path: Path) -> None:
    source: Any = multimodal("llava")
    source.save_pretrained(tmp_path / "source")
    inputs = text_and_image("llava", source)
    expected = source(**inputs, use_cache=False).logits
    for origin in (source, tmp_path / "source"):
        near(composer.build("softmax", origin)(**inputs).logits, expected)
    composer.build_folder("softmax", tmp_path / "source", tmp_path / "built")
    torch.save((inputs, expected), tmp_path / "inputs.pt")
    code = """
        import torch, composer
        from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
        inputs, expected = torch.load("inputs.pt")
        for auto in (AutoModelForCausalLM, AutoModelForImageTextToText):
            torch.testing.assert_close(auto.from_pretrained("built").eval()(**inputs).logits, expected, rtol=0, atol=2e-5)
    """
    printed_behind_composer(code, tmp_path)


def test_the_processor_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But not to the folder of a text decoder alone."""
    monkeypatch.setenv("COMPOSER_CACHE", str(tmp_path / "cache"))
    tokenizer = AutoTokenizer.from_pretrained(TEACHER)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    processor = LlavaProcessor(CLIPImageProcessor(), tokenizer, patch_size=8, chat_template="{{ messages }}")
    multimodal("llava", vocab_size=600).save_pretrained(tmp_path / "source")
    processor.save_pretrained(tmp_path / "source")
    composer.build_folder("softmax", tmp_path / "source", tmp_path / "built")
    copied = AutoProcessor.from_pretrained(tmp_path / "built")
    assert type(copied) is LlavaProcessor
    assert copied.chat_template == processor.chat_template
    composer.build_folder("softmax", tmp_path / "source", tmp_path / "text", text_only=True)
    assert not list((tmp_path / "text").glob("*processor_config.json"))


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("clip", "it has no decoder alone that writes text"),
        ("vit", "it has no decoder alone that writes text"),
        ("wav2vec2", "it has no decoder alone that writes text"),
        ("whisper", "it has no decoder alone that writes text"),
        ("llama4", "it norms and scales queries and keys after their rotation"),
        ("mllama", "its layers of cross-attention look at images"),
        ("qwen2_audio", "not compared with it in this family. `text_only=True` uses its text decoder"),
    ],
)
def test_other_models_are_refused_by_name(family: str, words: str, tmp_path: Path) -> None:
    CONFIG_MAPPING[family]().save_pretrained(tmp_path)
    with pytest.raises(SourceError, match=f"family {family} cannot be a source: .*{words}"):
        composer.explain("lolcats", tmp_path)


def test_commands_that_need_a_text_decoder_refuse_image_models(tmp_path: Path) -> None:
    multimodal("gemma3").save_pretrained(tmp_path / "source")
    composer.build_folder("softmax", tmp_path / "source", tmp_path / "built")
    with pytest.raises(ComposerError, match="gemma3 are not exported: they read images.*Build from the source with --text-only"):
        composer.export(tmp_path / "built", tmp_path / "exported")
    with pytest.raises(ValueError, match="vLLM does not serve composed models of the family gemma3, as they read images"):
        check_servable(AutoConfig.from_pretrained(tmp_path / "built"))
    for message in composer.explain("lolcats", tmp_path / "source").notes:
        assert "In `window` and `state` they see earlier tokens alone" in message
    notes = composer.explain("softmax", tmp_path / "source").notes
    assert not [note for note in notes if "more than the source's cache" not in note], "it holds pairs that windows do not see"
