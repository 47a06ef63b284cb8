"""On a GPU every shipped spec computes its main memories by a kernel. Main memories are all except those that hold a few pairs
and have one form everywhere: first pairs, learned pairs, a sparse cache, and means of blocks. A kernel is this project's, fla's,
or one that PyTorch selects itself if the form says so.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from blocks.memories.base import Memory
from blocks.operation import EVERY, FLA, TORCH, TRITON, Form, Setting
from composer.graph.lowering import AUTO, lower
from composer.graph.wiring import build_graph
from composer.spec.resolve import Dimensions
from tests.shipped import COVERING, FEW, on

MODEL = Dimensions(hidden_size=2048, layers=16, heads=16, key_heads=8, head_dim=128, rope_theta=5e5)
CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "trained, packed": {"documents": True, "gradients": True},
    "padded": {"padded": True},
}


WITHOUT_KERNEL = {"mesa", "log_linear", "selected_blocks"}
"""fla's kernel of MesaNet solves its systems by a fixed number of steps, less exactly than its definition. Its kernels of
log-linear attention, MoBA and NSA have other states or limits, and are not used yet."""


@cache
def forms(name: str, **call: Any) -> dict[str, tuple[str, Form]]:
    """Return the kind and the form of each memory of each head on a GPU."""
    setting = Setting(device="cuda", dtype="bfloat16", **call)
    return {
        f"{head}, {covered_part.node.name}": (covered_part.node.kind, step.form)
        for (head, _), (spec, shape, _) in on(name, MODEL).kinds().items()
        for step in lower(build_graph(spec, shape), AUTO, setting).steps
        for covered_part in step.covers
        if isinstance(covered_part.node.part, Memory) and covered_part.node.main
    }


@pytest.mark.parametrize("name", FEW)
def test_every_main_memory_has_a_kernel(name: str) -> None:
    for call, options in CALLS.items():
        forms_of = forms(name, **options)
        assert forms_of, call
        assert any(form.backend != EVERY for _, form in forms_of.values()), call
        for part_name, (kind, form) in forms_of.items():
            if form.backend == EVERY:
                assert kind in {"first", "meta", "sparse", "block_means"}, (call, part_name)
            else:
                assert form.backend in {TRITON, FLA} or form.picks or kind in WITHOUT_KERNEL, (call, part_name, form.description)


def test_the_only_pytorch_kernel_is_scaled_dot_product_attention() -> None:
    used = [of_memory for name in COVERING for of_memory in forms(name).values()]
    of_pytorch = {form.description for kind, form in used if form.backend == TORCH and kind not in WITHOUT_KERNEL}
    assert of_pytorch == {"scaled_dot_product_attention"}


def test_packed_documents_use_a_kernel_with_document_bounds() -> None:
    assert [form.description for _, form in forms("softmax", documents=True).values()] == ["parallel_attn"]
    assert [form.description for _, form in forms("softmax").values()] == ["scaled_dot_product_attention"]
