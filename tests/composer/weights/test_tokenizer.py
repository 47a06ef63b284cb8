"""With a tokenizer for fresh weights, its files are copied, its tokens are checked, and generation stops at its end token."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer

import composer
from composer.errors import BuildError, SourceError
from composer.weights import sources
from composer.weights.verify import verify
from tests.composer.model.trunks import document


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A tokenizer of 30 words with BOS and EOS last, beside other files."""
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    made = Tokenizer(models.WordLevel({f"w{index}": index for index in range(28)} | {"<s>": 28, "</s>": 29}, unk_token="w0"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "generation_config.json").write_text('{"temperature": 9.0}')
    (folder / "model.safetensors").write_text("weights")
    return folder


def test_tokenizer_files_are_copied(tmp_path: Path, tokenizer: Path) -> None:
    out = tmp_path / "out"
    composer.build_folder(document(), out=out, fresh=True, tokenizer=tokenizer)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (out / name).read_bytes() == (tokenizer / name).read_bytes()
    assert verify(out).ok
    assert AutoTokenizer.from_pretrained(out)("w3 w5")["input_ids"] == [3, 5]
    model = composer.load(out)
    assert (model.config.bos_token_id, model.config.eos_token_id) == (28, 29)
    assert json.loads((out / "generation_config.json").read_text()) == {"bos_token_id": 28, "eos_token_id": 29, "pad_token_id": 29}
    assert model.model.embed_tokens.padding_idx is None, "what ends a text is trained"
    composer.build_folder(document("lawcat"), out=out, fresh=True, force=True)
    assert not (out / "tokenizer.json").exists()


def test_more_tokens_than_embeddings_are_refused(tmp_path: Path, tokenizer: Path) -> None:
    with pytest.raises(BuildError, match=r"has 30 tokens, and the trunk has embeddings for 29\. Set `trunk\.vocabulary: 30`"):
        composer.build_folder(document(vocabulary=29), out=tmp_path / "out", fresh=True, tokenizer=tokenizer)
    composer.build_folder(document(vocabulary=30), out=tmp_path / "out", fresh=True, tokenizer=tokenizer)


def test_invalid_tokenizers_are_refused(tmp_path: Path, tokenizer: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(BuildError, match=r"empty has no tokenizer: none of the files"):
        composer.build_folder(document(), out=tmp_path / "out", fresh=True, tokenizer=empty)
    (tokenizer / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(BuildError, match="has no tokenizer that transformers can read"):
        composer.build_folder(document(), out=tmp_path / "out", fresh=True, tokenizer=tokenizer)
    with pytest.raises(SourceError, match="there is no folder .*nowhere"):
        composer.build_folder(document(), out=tmp_path / "out", fresh=True, tokenizer=tmp_path / "nowhere")
    assert not (tmp_path / "out").exists()


def test_from_the_hub_no_weights_are_fetched(tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    def fetch(name: str, revision: str | None, **options: object) -> tuple[Path, None]:
        calls.append((name, revision, options))
        return tokenizer, None

    monkeypatch.setattr(sources, "fetch", fetch)
    composer.build_folder(document(), out=tmp_path / "out", fresh=True, tokenizer="owner/model")
    assert calls == [("owner/model", None, {"weights": False, "tokenizer": True})]
    assert (tmp_path / "out" / "tokenizer.json").exists()
