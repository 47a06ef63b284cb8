"""An exported folder works in tools that know only transformers: pipelines, lm-eval's ``hf`` models, and TRL."""

from __future__ import annotations

import json
import logging
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset, disable_progress_bars
from peft import LoraConfig
from torch.utils import collect_env
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline
from trl import SFTConfig, SFTTrainer

import composer
from tests.composer.evaluation.test_harness import YAML
from tests.composer.exporting.models import randomised, uncompared

TEACHER = Path(__file__).parents[3] / "examples" / "teacher"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A LoLCATs model with random heads, and its export."""
    folder = tmp_path_factory.mktemp("tools")
    randomised(composer.build("lolcats", TEACHER)).save_pretrained(folder / "model")
    AutoTokenizer.from_pretrained(TEACHER).save_pretrained(folder / "model")
    with uncompared():
        composer.export(folder / "model", folder / "exported")
    return folder / "model", folder / "exported"


def load(exported: Path) -> tuple[Any, Any]:
    model = AutoModelForCausalLM.from_pretrained(exported, trust_remote_code=True, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(exported, trust_remote_code=True)


def test_a_pipeline_generates_the_text_of_the_model(folders: tuple[Path, Path]) -> None:
    folder, exported = folders
    writer = pipeline("text-generation", str(exported), trust_remote_code=True, dtype=torch.float32, device="cpu")
    (result,) = writer("1 2 3", max_new_tokens=6, do_sample=False, return_full_text=False)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("1 2 3", return_tensors="pt").input_ids
    expected = composer.load(folder).generate(ids, max_new_tokens=6, do_sample=False)
    assert result["generated_text"] == tokenizer.decode(expected[0, ids.shape[1] :], skip_special_tokens=True)
    assert expected.shape[1] > ids.shape[1]


def test_scores_of_lm_eval_equal_those_of_compose_eval(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import lm_eval
    from lm_eval.tasks import TaskManager

    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(collect_env, "get_pretty_env_info", lambda: "")
    rng = random.Random(0)
    rows = []
    for _ in range(24):
        digits = [str(rng.randrange(10)) for _ in range(4)]
        rows.append({"question": " ".join(digits), "choices": ["0", "3", "7"], "label": rng.randrange(3)})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "mine.yaml").write_text(YAML.replace("DATA", json.dumps(str(tmp_path / "rows.jsonl"))))
    folder, exported = folders
    own = composer.evaluate([folder], lm_eval=["mine"], include_path=tmp_path, out=tmp_path / "scores")
    arguments = {"pretrained": str(exported), "trust_remote_code": True, "dtype": "float32", "batch_size": 4, "device": "cpu"}
    manager = TaskManager(include_path=str(tmp_path), include_defaults=False)
    theirs = lm_eval.simple_evaluate("hf", arguments, tasks=["mine"], task_manager=manager, bootstrap_iters=0)
    assert theirs is not None
    (figure,) = [item.value for item in own.harness if item.metric == "acc"]
    assert theirs["results"]["mine"]["acc,none"] == figure
    assert 0 < figure < 1


def test_trl_trains_exports_with_an_adapter(folders: tuple[Path, Path], tmp_path: Path) -> None:
    disable_progress_bars()
    logging.getLogger("trl").setLevel(logging.ERROR)
    model, tokenizer = load(folders[1])
    settings: dict[str, Any] = {"bf16": False, "disable_tqdm": True, "report_to": "none", "save_strategy": "no", "use_cpu": True}
    arguments = SFTConfig(
        str(tmp_path), max_steps=4, learning_rate=1e-2, per_device_train_batch_size=4, logging_steps=1, **settings
    )
    data = Dataset.from_dict({"text": ["1 2 3 4 5 6 7 8"] * 16})
    adapter = LoraConfig(target_modules=["q_proj", "v_proj"], r=4)
    trainer = SFTTrainer(model, args=arguments, train_dataset=data, processing_class=tokenizer, peft_config=adapter)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 4
    assert losses[-1] < losses[0]
