"""Users can choose a model's backend, print its programs and add forward hooks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import composer
from blocks.operation import Setting
from composer.errors import BuildError, ComposerError
from composer.graph.lowering import lower
from composer.graph.source import write_source
from tests.checkpoints import logits
from tests.composer.graph.backends import NAME, own_backend
from tests.composer.model.models import llama, student, tokens

SPECS = {"lolcats": ("head.memory.0.size=5",), "lola": ("head.memory.0.size=3", "head.memory.1.size=4"), "lawcat": ()}


@pytest.mark.parametrize("spec", SPECS)
def test_every_backend_has_the_same_logits(spec: str) -> None:
    model, ids = student(spec, *SPECS[spec]), tokens(2, 17)
    expected = logits(model, ids)
    for backend in ("reference", "torch", "auto"):
        model.set_backend(backend)
        torch.testing.assert_close(logits(model, ids), expected, rtol=1e-9, atol=1e-9)


def test_a_custom_backend_runs_after_build_load_and_set_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend may be set by build, load or set_backend, and generation uses it."""
    expected = logits(student("lawcat"), tokens(1, 9))
    with own_backend(monkeypatch) as calls:
        model = student("lawcat", source=llama())
        model.save_pretrained(tmp_path / "student")
        for made in (composer.build("lawcat", llama(), backend=NAME), composer.load(tmp_path / "student", backend=NAME)):
            calls.clear()
            logits(made, tokens(1, 9))
            assert len(calls) == 3, "once a layer"
        calls.clear()
        torch.testing.assert_close(logits(model, tokens(1, 9)), expected, rtol=1e-10, atol=1e-10)
        assert not calls
        model.set_backend(NAME)
        torch.testing.assert_close(logits(model, tokens(1, 9)), expected, rtol=1e-10, atol=1e-10)
        assert calls
        calls.clear()
        model.generate(tokens(1, 5), do_sample=False, max_new_tokens=4, eos_token_id=None)
        assert [shape[1] for shape in calls] == [5] * 3 + [1] * 9


def test_unknown_backends_are_refused_with_a_list_of_backends(tmp_path: Path) -> None:
    model = student("lolcats")
    model.save_pretrained(tmp_path / "student")
    for attempt in (
        lambda: model.set_backend("tritn"),
        lambda: composer.load(tmp_path / "student", backend="tritn"),
        lambda: composer.build("lolcats", llama(), backend="tritn"),
    ):
        with pytest.raises(BuildError, match=r'there is no backend "tritn"; there are auto, fla, reference, torch, triton$'):
            attempt()
    with pytest.raises(BuildError, match=r"there is no backend \"\['torch'\]\"; there are auto, "):
        model.set_backend(["torch"])  # pyright: ignore[reportArgumentType]
    with pytest.raises(BuildError, match="a source is a folder, a repository of the Hub or a model of transformers, not 5"):
        composer.build("lolcats", 5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ComposerError, match=r"^folder: expected text or a path, got null$"):
        composer.load(None)  # pyright: ignore[reportArgumentType]


def test_forward_hooks_run_once_per_operation() -> None:
    """A hook fires once per call and operation that uses a part's module, with the outputs, also for a cache that is one step with
    the state below it. Functions of tensors alone are called directly."""
    model: Any = student("lola", *SPECS["lola"])
    head, seen = model.model.layers[1].self_attn.composed.head, dict[str, list[Any]]()
    for name, module in head.named_children():
        module.register_forward_hook(lambda _module, _inputs, output, name=name: seen.setdefault(name, []).append(output))
    logits(model, tokens(2, 11))
    assert seen.keys() == {"window", "sparse", "state", "feature_map"}
    assert seen["window"][0].shape == (4,), "its weight"
    assert {name: len(outputs) for name, outputs in seen.items() if name != "feature_map"} == dict.fromkeys(
        ("window", "sparse", "state"), 1
    )


def test_global_forward_hooks_run_on_heads_and_parts() -> None:
    model: Any = student("lolcats")
    seen: set[str] = set()
    hook = torch.nn.modules.module.register_module_forward_hook(lambda module, *_: seen.add(type(module).__name__))
    try:
        logits(model, tokens(1, 7))
    finally:
        hook.remove()
    assert seen >= {"ComposedHeads", "Head", "PartModule"}


def test_hooks_may_change_the_output_of_a_part() -> None:
    model: Any = student("lolcats")
    ids, window = tokens(1, 70), model.model.layers[0].self_attn.composed.head.window
    before = logits(model, ids)
    hook = window.register_forward_hook(lambda _module, _inputs, output: output + 1)
    assert not torch.allclose(logits(model, ids), before)
    hook.remove()
    assert torch.equal(logits(model, ids), before)


def test_a_model_is_printed_with_its_programs() -> None:
    model: Any = student("lola", *SPECS["lola"])
    head, printed = model.model.layers[0].self_attn.composed.head, repr(model)
    for line in write_source(lower(head._compiled.graph)).text.splitlines():
        assert line in printed


@pytest.mark.parametrize("spec", ["lolcats", "lawcat", "softmax"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_printed_program_is_for_the_device_and_dtype_of_the_model(spec: str, dtype: torch.dtype) -> None:
    """This includes heads without parameters and heads with precise ones. The meta device stands for one that is no CPU."""
    model: Any = student(spec)
    model.to(dtype)
    head, dtype_name = model.model.layers[0].self_attn.composed.head, str(dtype).removeprefix("torch.")
    assert f"# backend auto on cpu, {dtype_name}. Shapes: B rows, T tokens." in repr(model)
    for line in write_source(head._compiled.program("auto", Setting("cpu", dtype_name))).text.splitlines():
        assert line in repr(model)
    model.set_backend("reference")
    assert f"# backend reference on meta, {dtype_name}." in repr(model.to("meta"))


def test_a_head_is_printed_with_the_dtype_of_its_parameters() -> None:
    model: Any = student("lawcat")
    head = model.bfloat16().model.layers[0].self_attn.composed.head
    assert "# backend auto on cpu, bfloat16." in repr(head)
    assert {parameter.dtype for parameter in head.parameters()} == {torch.bfloat16, torch.float32}
    bare: Any = student("softmax")
    assert "# backend auto on cpu, float32." in repr(bare.model.layers[0].self_attn.composed)


def test_a_part_is_printed_with_its_kind_and_parameters() -> None:
    printed = repr(student("lolcats"))
    assert re.search(r"\(feature_map\): PartModule\(hedgehog, query_weight \(\d+, \d+, \d+\), key_weight", printed)
    assert "(pairs): PartModule(entry)" in printed


def test_a_call_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match=r"input_ids has the shape \(2, 0\); expected at least one token in each row"):
        student("lolcats")(torch.zeros(2, 0, dtype=torch.long))
