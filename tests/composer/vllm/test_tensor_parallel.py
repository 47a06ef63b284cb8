"""Two processes that each have a share of a model compute what the model computes. Here they are threads."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

import composer
from composer.vllm.tensor_parallel import check_divisible, divide
from tests.composer.exporting.models import randomised
from tests.composer.model.models import CAUSAL
from tests.composer.vllm.test_served_heads import SMALL
from tests.covers import covering_specs, some

ROOT = Path(__file__).parents[3]
TEACHER = ROOT / "examples" / "teacher"
TOGETHER = ("hypenet", "latte", "latte-conv", "latte-macchiato", "latte-rglru", "mamba2", "retention")
"""Specs with latents that all heads share, a norm over all heads, or decays that follow from the number of a head."""
ONE_KEY_HEAD = ("hydrahead", "mixed-heads")
JOINED = "compressed"
"""A spec with a matrix that belongs to several heads at once."""
DIVIDED = [name for name in CAUSAL if "/" not in name and name not in (*TOGETHER, *ONE_KEY_HEAD, JOINED)]
BY_HEAD = {
    "compose": 1,
    "name": "by-head",
    "heads": {
        "b": {
            "feature_map": "hedgehog",
            "memory": [{"kind": "window", "size": 8}, {"kind": "sparse", "size": 4, "keep": "random"}, {"kind": "state"}],
        }
    },
    "layers": [{"at": "all", "use": [{"head": "source", "heads": [1, 2]}, {"head": "b", "heads": "rest"}]}],
}
"""Groups that do not follow each other, one of which chooses pairs at random."""


def logits_of_two(model: Any, tokens: Tensor) -> list[Tensor]:
    """Return the logits of two shares of a model, which run side by side and sum up where they have to."""
    barrier, shares = Barrier(2, timeout=60), {}

    def run(rank: int) -> Tensor:
        def reduce(partial: Tensor) -> Tensor:
            shares[rank] = partial
            barrier.wait()
            total = shares[0] + shares[1]
            barrier.wait()
            return total

        share = copy.deepcopy(model)
        try:
            divide(share, rank, 2, reduce)
            with torch.no_grad():
                return share(tokens).logits
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(run, range(2)))


def check(model: Any, tokens: int = 100) -> None:
    check_divisible(model.config, 2)
    text = torch.randint(0, model.config.vocab_size, (1, tokens), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted = model(text).logits
    for logits in logits_of_two(model, text):
        assert float((logits - wanted).abs().max() / wanted.abs().max()) < 2e-5


@pytest.mark.parametrize("name", some(DIVIDED, covering_specs(DIVIDED)))
def test_two_shares_have_the_logits_of_every_shipped_spec(name: str) -> None:
    check(randomised(composer.build(name, TEACHER, overrides=["trunk=null"])))


@pytest.mark.parametrize("name", TOGETHER)
def test_heads_that_depend_on_each_other_are_refused(name: str) -> None:
    model = randomised(composer.build(name, TEACHER, overrides=["trunk=null"]))
    with pytest.raises(ValueError, match=r"--tensor-parallel-size 2: the heads 'head' depend on all heads"):
        divide(model, 0, 2, lambda partial: partial)


def test_a_matrix_of_several_heads_is_refused() -> None:
    model = randomised(composer.build(JOINED, TEACHER, overrides=["trunk=null"]))
    with pytest.raises(ValueError, match=r"--tensor-parallel-size 2: compressed.down of the head 'head' belongs to several heads"):
        divide(model, 0, 2, lambda partial: partial)


@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("qwen2", {}),
        ("qwen3", {}),
        ("gemma2", {"sliding_window": 16, "query_pre_attn_scalar": 24}),
        ("mixtral", {"num_local_experts": 2, "num_experts_per_tok": 1}),
    ],
)
def test_two_shares_of_other_hosts_have_the_logits_of_the_model(family: str, more: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = SMALL | {"num_attention_heads": 8, "num_key_value_heads": 4}
    AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes | more)).save_pretrained(tmp_path)
    check(randomised(composer.build(BY_HEAD, tmp_path)))


def test_groups_that_cannot_be_shared_evenly_are_refused_by_name() -> None:
    model = composer.build("mixed-heads", TEACHER)
    with pytest.raises(ValueError, match="'lolcats' of layer 0 has 1 key heads, which 2 processes cannot share evenly"):
        check_divisible(model.config, 2)


def test_hosts_that_transformers_does_not_divide_are_refused(tmp_path: Path) -> None:
    AutoModelForCausalLM.from_config(AutoConfig.for_model("olmo2", **SMALL)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="no plan that divides the four projections of composed_olmo2"):
        check_divisible(composer.build("lolcats", tmp_path).config, 2)
