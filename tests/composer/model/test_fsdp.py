"""A student in float32 trains under FSDP with a policy of bfloat16. In bfloat16 it has precise parameters, which FSDP refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

import composer
from tests.composer.model.models import llama

IDS = torch.arange(3, 35)[None]


@pytest.fixture(autouse=True)
def process_group(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def shard_in_place(model: Any) -> Any:
    """Shard a model by FSDP2."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for module in (*model.model.layers, model):
        fully_shard(module, mp_policy=policy)
    return model


def wrap(model: Any) -> Any:
    """Return a model in FSDP1."""
    return FullyShardedDataParallel(
        model,
        use_orig_params=True,
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16),
        auto_wrap_policy=ModuleWrapPolicy({type(model.model.layers[0])}),
        device_id=torch.device("cpu"),
    )


@pytest.mark.parametrize("fsdp", [shard_in_place, wrap])
@pytest.mark.parametrize("spec", ["lawcat", "gated-deltanet"])
def test_float32_students_train_with_a_bfloat16_policy(spec: str, fsdp: Callable[[Any], Any]) -> None:
    model: Any = composer.build(spec, llama(), dtype="float32")
    expected = model(IDS, labels=IDS).loss
    sharded = fsdp(model.train())
    loss = sharded(IDS, labels=IDS).loss
    torch.testing.assert_close(loss.detach(), expected.detach(), rtol=0.02, atol=0)
    loss.backward()
    gradients = [parameter.grad for name, parameter in sharded.named_parameters() if ".composed." in name]
    assert gradients
    assert all(gradient is not None and gradient.dtype == torch.float32 for gradient in gradients)


@pytest.mark.parametrize(("fsdp", "problem"), [(shard_in_place, AssertionError), (wrap, ValueError)])
def test_fsdp_refuses_bfloat16_students_with_precise_parameters(fsdp: Callable[[Any], Any], problem: type[Exception]) -> None:
    """The page names these messages; where PyTorch no longer refuses, the page can lose its advice."""
    model: Any = composer.build("lawcat", llama(), dtype="bfloat16")
    assert {str(parameter.dtype) for parameter in model.parameters()} == {"torch.bfloat16", "torch.float32"}
    with pytest.raises(problem, match="uniform (original parameter )?dtype"):
        fsdp(model.train())(IDS)
