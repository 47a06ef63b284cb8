"""Fine-tuning on a teacher's logits needs only its vocabulary. Online and stored logits give the same losses."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import composer
from composer.errors import TrainingError
from composer.training import logits_writing
from composer.training.journal import LOG
from composer.training.stored_logits import LOGITS, SHARD, SHARDS
from tests.composer.training.runs import VOCABULARY, WORDS, make_student, make_teacher, write_texts

SEQUENCE, SHARE, TEMPERATURE = 16, 0.2, 2.0
DISTILLED = (
    "recipe.finetune.distill=1",
    "recipe.finetune.next_token=0.5",
    f"recipe.finetune.temperature={TEMPERATURE}",
    "recipe.finetune.steps=4",
)
WIDE = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2, "seed": 5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A student of a small model, a teacher of another width and depth, and texts."""
    made = tmp_path_factory.mktemp("logits")
    make_student(made / "student", make_teacher(made / "source"))
    make_teacher(made / "wide", **WIDE)
    write_texts(made / "texts.jsonl")
    return made


def write(folder: Path, out: Path, top_k: int = VOCABULARY, **options: Any) -> Any:
    usual: dict[str, Any] = {"teacher": folder / "wide", "sequence": SEQUENCE, "share": SHARE, "temperature": TEMPERATURE}
    call_options = usual | options
    return composer.logits(call_options.pop("teacher"), str(folder / "texts.jsonl"), out, top_k=top_k, **call_options)


def distill(folder: Path, out: Path, *overrides: str, **options: Any) -> tuple[Any, list[dict[str, Any]]]:
    """Return the report and the log of a run."""
    usual: dict[str, Any] = {"share": SHARE, "stage": "finetune", "overrides": [*DISTILLED, *overrides]}
    report = composer.distill(folder / "student", str(folder / "texts.jsonl"), out, **{**usual, **options})
    return report, [json.loads(line) for line in (out / "training" / LOG).read_text().splitlines()]


def losses(log: list[dict[str, Any]], kind: str = "loss") -> list[float]:
    return [line[kind]["model"] for line in log if kind in line]


def test_teachers_of_another_width_are_supported(folder: Path, tmp_path: Path) -> None:
    """Only its logits are used. A stopped run continues, and another teacher is rejected."""
    report, log = distill(folder, tmp_path / "out", teacher=folder / "wide")
    assert all(math.isfinite(loss) for loss in losses(log))
    assert report.teacher_loss is not None
    own, _ = distill(folder, tmp_path / "own")
    assert own.loss != report.loss, "the teacher makes a difference"

    class StoppedError(Exception):
        pass

    def stop(step: Any) -> None:
        if step.step == 2:
            raise StoppedError

    again: dict[str, Any] = {"teacher": folder / "wide", "checkpoint_seconds": 0.0}
    with pytest.raises(StoppedError):
        distill(folder, tmp_path / "stopped", progress=stop, **again)
    with pytest.raises(TrainingError, match=r"teacher\.folder: was .*wide, now .*source"):
        distill(folder, tmp_path / "stopped", resume=True, teacher=folder / "source")
    resumed, _ = distill(folder, tmp_path / "stopped", resume=True, **again)
    assert resumed.loss == report.loss
    with pytest.raises(TrainingError, match="does not fit the student: .*Only fine-tuning learns from a teacher of other sizes"):
        distill(folder, tmp_path / "no", stage="all", teacher=folder / "wide")


def test_a_teacher_with_another_vocabulary_is_refused(folder: Path, tmp_path: Path) -> None:
    """The error names the first different token. Embeddings may be padded beyond the tokens."""
    other = shutil.copytree(folder / "wide", tmp_path / "other")
    text = json.loads((other / "tokenizer.json").read_text())
    vocabulary = text["model"]["vocab"]
    vocabulary[WORDS[5]], vocabulary[WORDS[7]] = vocabulary[WORDS[7]], vocabulary[WORDS[5]]
    (other / "tokenizer.json").write_text(json.dumps(text))
    problem = f'another vocabulary: token 5 is "{WORDS[7]}" in its tokenizer and "{WORDS[5]}" in the student\'s'
    with pytest.raises(TrainingError, match=problem):
        distill(folder, tmp_path / "out", teacher=other)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (other / name).unlink()
    with pytest.raises(TrainingError, match="other has no tokenizer that transformers can read"):
        distill(folder, tmp_path / "out", teacher=other)
    few = make_teacher(tmp_path / "few", **{**WIDE, "vocab_size": len(WORDS) - 1})
    with pytest.raises(
        TrainingError, match=f"few has {len(WORDS) - 1} embeddings, the student {VOCABULARY}, and their tokenizer has"
    ):
        distill(folder, tmp_path / "out", teacher=few)


@pytest.mark.parametrize("rows", [VOCABULARY + 64, VOCABULARY - 1], ids=["more", "fewer"])
def test_padded_embeddings_are_ignored(folder: Path, tmp_path: Path, rows: int) -> None:
    """A teacher with more embeddings than the student gives the same losses as one with as many."""
    assert len(WORDS) <= rows
    padded = make_teacher(tmp_path / "padded", **{**WIDE, "vocab_size": rows})
    _, log = distill(folder, tmp_path / "out", teacher=padded)
    assert all(math.isfinite(loss) for loss in losses(log))
    if rows > VOCABULARY:
        cut = shutil.copytree(padded, tmp_path / "cut")
        weights = load_file(cut / "model.safetensors")
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            if name in weights:
                weights[name] = weights[name][:VOCABULARY].clone()
        save_file(weights, cut / "model.safetensors", {"format": "pt"})
        config = json.loads((cut / "config.json").read_text())
        (cut / "config.json").write_text(json.dumps(config | {"vocab_size": VOCABULARY}))
        _, same = distill(folder, tmp_path / "same", teacher=cut)
        assert losses(log) == pytest.approx(losses(same), rel=1e-6)


def test_losses_from_all_stored_logits_equal_those_online(folder: Path, tmp_path: Path) -> None:
    report, log = distill(folder, tmp_path / "online", teacher=folder / "wide")
    written = write(folder, tmp_path / "logits")
    assert written.record.complete
    assert written.bytes > written.tokens * VOCABULARY * 8
    stored, own = distill(folder, tmp_path / "stored", teacher_logits=tmp_path / "logits")
    assert losses(own) == pytest.approx(losses(log), abs=1e-5)
    assert losses(own, "held_out") == pytest.approx(losses(log, "held_out"), abs=1e-5)
    assert stored.teacher_loss == pytest.approx(report.teacher_loss, abs=1e-5)
    assert stored.loss == pytest.approx(report.loss, abs=1e-5)


def test_few_stored_logits_lower_the_loss(folder: Path, tmp_path: Path) -> None:
    """The loss is at most that over all tokens, its gradients are finite, and it decreases."""
    write(folder, tmp_path / "all")
    write(folder, tmp_path / "few", top_k=4)
    overrides = ("recipe.finetune.next_token=0", "recipe.finetune.steps=12")
    _, whole = distill(folder, tmp_path / "whole", *overrides, teacher_logits=tmp_path / "all")
    report, log = distill(folder, tmp_path / "out", *overrides, teacher_logits=tmp_path / "few")
    assert 0 < losses(log)[0] < losses(whole)[0]
    assert all(math.isfinite(line["norm"]["model"]) for line in log if "norm" in line)
    assert losses(log, "held_out")[-1] < losses(log, "held_out")[0]
    (stage,) = composer.weights.record.read_record(report.out).training
    assert stage.teacher == str(folder / "wide")


def test_writing_that_was_stopped_continues(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Existing shards are not computed again, and all equal those of an uninterrupted call."""
    monkeypatch.setattr(logits_writing, "SHARD_BYTES", 4 * 8 * SEQUENCE * 6)
    whole = write(folder, tmp_path / "whole", top_k=4)
    assert whole.record.rows_per_shard == 6
    count = len(list((tmp_path / "whole").glob(SHARDS)))
    assert count > 2

    def stop(done: int, total: int) -> None:
        if done >= 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(folder, tmp_path / "out", top_k=4, progress=stop)
    assert len(list((tmp_path / "out").glob(SHARDS))) == 2
    with pytest.raises(TrainingError, match="are not complete. Run the same `compose logits` again"):
        distill(folder, tmp_path / "no", teacher_logits=tmp_path / "out")
    before = (tmp_path / "out" / SHARD.format(0)).stat().st_mtime_ns
    with pytest.raises(TrainingError, match="top_k: was 4, now 5"):
        write(folder, tmp_path / "out", top_k=5)
    write(folder, tmp_path / "out", top_k=4)
    assert (tmp_path / "out" / SHARD.format(0)).stat().st_mtime_ns == before
    for number in range(count):
        pair = [load_file(tmp_path / name / SHARD.format(number)) for name in ("whole", "out")]
        assert all(torch.equal(pair[0][name], pair[1][name]) for name in pair[0])
    write(folder, tmp_path / "out", top_k=5, force=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(TrainingError, match="so no call of compose logits wrote it"):
        write(folder, tmp_path / "mine", force=True)


def test_rows_that_are_not_stored_are_refused(folder: Path, tmp_path: Path) -> None:
    write(folder, tmp_path / "logits", top_k=4)
    extra_options: dict[str, Any] = {"teacher_logits": tmp_path / "logits"}
    for overrides, options, message in (
        (
            ["recipe.sequence=12"],
            {},
            r"lacks the logits of \d+ of the \d+ rows to learn from\.\n  recipe\.sequence: was 16, now 12",
        ),
        ([], {"seed": 1}, r"lacks .*\n  `seed`: was 0, now 1"),
        ([], {"share": 0.5}, r"lacks .*\n  `share`: was 0\.2, now 0\.5"),
        (["recipe.rows=padded"], {}, "lacks .*The texts, or recipe.rows, are others than then"),
        (["recipe.finetune.temperature=1"], {}, "temperature is 1, and the logits in .* were written with 2"),
        (["recipe.finetune.distill=0"], {}, r'does not learn from logits\. Add `overrides=\["recipe\.finetune\.distill=1"\]`'),
        ([], {"stage": "all"}, "attention transfer needs the teacher itself"),
        ([], {"teacher": folder / "wide"}, "replaces `teacher`"),
        ([], {"teacher_logits": folder}, f"has no {LOGITS}. Write one: `compose logits"),
    ):
        with pytest.raises(TrainingError, match=message):
            distill(folder, tmp_path / "out", *overrides, **(extra_options | options))
    with pytest.raises(TrainingError, match="`top_k=65`: the teacher has 64 tokens"):
        write(folder, tmp_path / "more", top_k=65)


def test_stored_logits_that_are_damaged_are_refused(folder: Path, tmp_path: Path) -> None:
    write(folder, tmp_path / "logits", top_k=4)
    path = tmp_path / "logits" / SHARD.format(0)
    contents, tensors = path.read_bytes(), load_file(path)

    def run() -> None:
        distill(folder, tmp_path / "out", teacher_logits=tmp_path / "logits", force=True)

    tensors["offsets"][1] += 1
    save_file(tensors, path)
    with pytest.raises(TrainingError, match="is damaged: row"):
        run()
    tensors["offsets"][1] -= 1
    tensors["tokens"][:] = VOCABULARY
    save_file(tensors, path)
    with pytest.raises(TrainingError, match=f"it has tokens beyond the {VOCABULARY} of its teacher"):
        run()
    path.write_bytes(contents[: len(contents) // 2])
    with pytest.raises(TrainingError, match="is damaged"):
        run()
    path.write_bytes(contents)
    record = tmp_path / "logits" / LOGITS
    record.write_text(record.read_text().replace('"top_k": 4', '"top_k": "4"'))
    with pytest.raises(TrainingError, match=f"{LOGITS} is damaged: top_k: input should be a valid integer, got '4'"):
        run()
