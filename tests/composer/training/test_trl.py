"""TRL's ``SFTTrainer`` trains students of the shipped teacher, packed, without padding, with adapters, on answers alone; and by the
same steps as ``compose distill --stage finetune``."""

from __future__ import annotations

import copy
import logging
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset, disable_progress_bars
from peft import LoraConfig, get_peft_model_state_dict, set_peft_model_state_dict
from torch.nn import functional
from transformers import AutoTokenizer
from trl import SFTConfig, SFTTrainer

import composer
from composer.data.loading import load_rows
from composer.data.packing import IGNORED, PackedRows, permutation
from composer.model.modeling import ComposedForCausalLM
from composer.spec.recipe import Finetune, Lora
from composer.training.finetune import FinetuneCourse, add_adapters, finetune_unit, lora_config
from composer.training.journal import Journal
from composer.training.loop import StageSetting, run_stage
from tests.composer.training.stages import log

TEACHER = Path(__file__).parents[3] / "examples" / "teacher"
LENGTH, BATCH, STEPS, RATE, SEED = 96, 2, 20, 3e-3, 5
SPEC = "lolcats"
SMALL_WINDOW = ["head.memory.0.size=16"]
QUIET: dict[str, Any] = {
    "bf16": False,
    "disable_tqdm": True,
    "gradient_checkpointing": False,
    "logging_steps": 1,
    "report_to": "none",
    "save_strategy": "no",
    "train_sampling_strategy": "sequential",
    "use_cpu": True,
}


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> None:
    disable_progress_bars()
    logging.getLogger("trl").setLevel(logging.ERROR)


@cache
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(TEACHER)


@cache
def stories() -> tuple[tuple[int, ...], ...]:
    """Return the tokens of beginnings of stories, 20 to 79 of them, so that several fit into most rows."""
    rows = load_rows(["stories,samples=100"], tokenizer(), LENGTH, split="train", vocabulary=507, how="padded", share=0.0)
    texts = (ids[valid].tolist() for ids, valid in zip(rows.ids, rows.valid, strict=True))
    return tuple(tuple(text[: 20 + 17 * index % 60]) for index, text in enumerate(texts))


def student() -> ComposedForCausalLM:
    return copy.deepcopy(_built())


@cache
def _built() -> Any:
    return composer.build(SPEC, str(TEACHER), overrides=SMALL_WINDOW)


def trainer(model: Any, out: Path, data: Dataset, peft_config: Any = None, **options: Any) -> SFTTrainer:
    processing_class = options.pop("tokenizer", None) or tokenizer()
    settings = QUIET | {"max_steps": 2, "per_device_train_batch_size": BATCH, "learning_rate": RATE} | options
    return SFTTrainer(
        model=model,
        args=SFTConfig(output_dir=str(out), **settings),
        train_dataset=data,
        processing_class=processing_class,
        peft_config=peft_config,
    )


def losses_of(done: SFTTrainer) -> list[float]:
    return [entry["loss"] for entry in done.state.log_history if "loss" in entry]


def packed_by(done: SFTTrainer) -> PackedRows:
    """Return the rows that TRL has packed, in the places from which ``compose distill`` reads them in order."""
    rows = list(done.train_dataset)[: STEPS * BATCH]
    shape, order = (len(rows), LENGTH), permutation(len(rows), SEED, 0)
    ids, position = np.zeros(shape, np.int32), np.tile(np.arange(LENGTH, dtype=np.int32), (len(rows), 1))
    labels, valid = np.full(shape, IGNORED, np.int32), np.zeros(shape, np.bool_)
    for at, row in zip(order, rows, strict=True):
        size = len(row["input_ids"])
        ids[at, :size] = labels[at, :size] = row["input_ids"]
        valid[at, :size] = True
        position[at, :size] = np.concatenate([np.arange(length) for length in row["seq_lengths"]])
        labels[at, position[at] == 0] = IGNORED
    return PackedRows(ids, labels, position, valid)


def test_packed_training_has_the_losses_of_the_finetune_stage(tmp_path: Path) -> None:
    """Rows, order, initial adapters, AdamW, rate, clipping and the mean over predicted tokens are equal, so all 20 losses and
    the final adapters are.
    """
    stage = Finetune(lr=RATE, steps=STEPS, batch=BATCH, lora=Lora(rank=4), fresh=False, clip=0.2)
    own, other = student(), student()
    assert stage.lora is not None
    config = lora_config(own, stage.lora)
    add_adapters(own, stage.lora, SEED)
    data = Dataset.from_dict({"input_ids": [list(story) for story in stories()]})
    theirs = trainer(
        other,
        tmp_path / "trl",
        data,
        config,
        max_steps=STEPS,
        packing=True,
        max_length=LENGTH,
        lr_scheduler_type="constant",
        weight_decay=stage.weight_decay,
        max_grad_norm=stage.clip,
    )
    assert len(theirs.train_dataset) >= STEPS * BATCH
    assert max(len(row["seq_lengths"]) for row in theirs.train_dataset) > 1, "rows of several documents"
    start = get_peft_model_state_dict(own)
    set_peft_model_state_dict(theirs.model, {f"base_model.model.{name}": tensor for name, tensor in start.items()})

    course = FinetuneCourse(own, finetune_unit(own, stage), stage, None)
    run_stage("finetune", course, stage, packed_by(theirs), None, StageSetting(tmp_path, Journal(tmp_path), seed=SEED))
    theirs.train()

    ours = [entry["loss"]["model"] for entry in log(tmp_path) if "loss" in entry]
    their_losses = losses_of(theirs)
    assert len(their_losses) == len(ours) == STEPS
    assert max(abs(first - another) for first, another in zip(ours, their_losses, strict=True)) < 1e-4
    assert sum(ours[:5]) - sum(ours[-5:]) > 0.25, "something was learned"
    learned = get_peft_model_state_dict(theirs.model)
    for name, tensor in get_peft_model_state_dict(own).items():
        torch.testing.assert_close(learned[f"base_model.model.{name}"], tensor, rtol=0, atol=1e-3)


MODES: dict[str, dict[str, Any]] = {
    "padded": {"max_length": LENGTH},
    "packed": {"packing": True, "max_length": LENGTH},
    "packed, long texts split": {"packing": True, "packing_strategy": "bfd_split", "max_length": 48},
    "packed as one text a row": {"packing": True, "packing_strategy": "wrapped", "max_length": LENGTH},
    "without padding": {"padding_free": True, "max_length": None},
    "padded to a multiple": {"padding_free": True, "max_length": None, "pad_to_multiple_of": 64},
    "checkpointed": {"packing": True, "max_length": LENGTH, "gradient_checkpointing": True},
    "checkpointed, reentrant": {
        "packing": True,
        "max_length": LENGTH,
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": True},
    },
    "in two parts": {"packing": True, "max_length": LENGTH, "gradient_accumulation_steps": 2},
}


def documents_of(row: dict[str, Any], *, joined: bool) -> list[tuple[list[int], list[int]]]:
    """Return the documents of a row of TRL, each with the labels of its tokens."""
    ids, labels = row["input_ids"], row.get("labels") or row["input_ids"]
    lengths = [len(ids)] if joined else row.get("seq_lengths") or [len(ids)]
    bounds = np.cumsum([0, *lengths])
    return [(ids[start:end], labels[start:end]) for start, end in pairwise(bounds)]


@torch.no_grad()
def loss_by_hand(documents: list[tuple[list[int], list[int]]]) -> float:
    """Return the mean loss of the predicted tokens with one call per document."""
    losses = []
    for ids, labels in documents:
        logits = _built()(torch.tensor([ids])).logits[0, :-1]
        targets = torch.tensor(labels[1:])
        losses.append(functional.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="none")[targets != IGNORED])
    return float(torch.cat(losses).mean())


@pytest.mark.parametrize(
    ("mode", "adapters"), [*((mode, False) for mode in MODES), ("packed", True), ("checkpointed, reentrant", True)]
)
def test_the_first_loss_equals_that_of_separate_documents(mode: str, adapters: bool, tmp_path: Path) -> None:
    """Each document of a row is read separately, and training changes the intended parameters."""
    options, before = MODES[mode], dict(_built().named_parameters())
    data = Dataset.from_dict({"input_ids": [list(story) for story in stories()[:24]]})
    lora = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM") if adapters else None
    training = trainer(student(), tmp_path, data, lora, **options)
    joined = options.get("packing_strategy") == "wrapped"
    rows = list(training.train_dataset)[: BATCH * options.get("gradient_accumulation_steps", 1)]
    wanted = loss_by_hand([document for row in rows for document in documents_of(row, joined=joined)])
    training.train()
    assert losses_of(training)[0] == pytest.approx(wanted, rel=1e-5)
    after = {
        name.removeprefix("base_model.model.").replace(".base_layer", ""): of for name, of in training.model.named_parameters()
    }
    changed = {name for name, of in after.items() if ".lora_" not in name and not torch.equal(of, before[name])}
    assert bool(changed) != adapters
    assert any(".lora_B." in name and bool(of.any()) for name, of in after.items()) == adapters


PROMPT, COMPLETION = "Once upon a time there was a kind child named Tom. ", "One day Tom went to the park."
MARKED = (
    "{% for turn in messages %}{% if turn['role'] == 'assistant' %}{% generation %}{{ turn['content'] }}{{ eos_token }}"
    "{% endgeneration %}{% else %}{{ turn['content'] }}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize("packing", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("form", ["completion", "assistant"])
def test_only_answers_are_learned(form: str, packing: bool, tmp_path: Path) -> None:
    """The data are prompts with completions (``completion_only_loss``) or conversations (``assistant_only_loss``)."""
    marked = copy.deepcopy(tokenizer())
    marked.chat_template = MARKED
    if form == "completion":
        data, config_options = {"prompt": [PROMPT] * 4, "completion": [COMPLETION, PROMPT] * 2}, {"completion_only_loss": True}
    else:
        turns = [[{"role": "user", "content": PROMPT}, {"role": "assistant", "content": text}] for text in (COMPLETION, PROMPT)]
        data, config_options = {"messages": turns * 2}, {"assistant_only_loss": True}
    options = config_options | {"packing": packing, "max_length": LENGTH}
    training = trainer(student(), tmp_path, Dataset.from_dict(data), tokenizer=marked, **options)
    rows = list(training.train_dataset)[:BATCH]
    documents = [document for row in rows for document in documents_of(row, joined=False)]
    for ids, labels in documents:
        learned = [token for token in labels if token != IGNORED]
        assert marked.decode(learned, skip_special_tokens=True).strip() in {COMPLETION.strip(), PROMPT.strip()}
        assert len(learned) < len(ids)
    training.train()
    assert losses_of(training)[0] == pytest.approx(loss_by_hand(documents), rel=1e-5)
