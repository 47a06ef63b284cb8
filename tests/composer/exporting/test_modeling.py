"""The exported file of a model computes what the model does: every shipped spec, every part, and several hosts.

Logits, gradients, cached pieces, padding and greedy text are compared. The file runs in the same process, without a folder.
"""

from __future__ import annotations

import ast
import copy
import cProfile
import os
import pstats
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import cpu_offload, disk_offload
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.dynamic_module_utils import get_imports

import composer
from blocks.catalogue import CATALOGUE
from composer.errors import ExportError
from composer.exporting.head_recording import LayerPlace
from composer.exporting.modeling import write_file
from composer.spec.loading import load_spec
from composer.spec.resolve import resolve
from composer.weights.config import dimensions
from composer.weights.sources import describe_model
from tests.composer.exporting.models import SHORT, check_equal, generated, of_file, padded, randomised, texts
from tests.composer.model.models import CAUSAL, FEW, OTHER_CACHES
from tests.composer.model.shared_layers import parts_of
from tests.covers import some
from tests.laws.cases import SMALL as LAW_SIZES
from tests.laws.cases import around, field_of
from tests.shipped import on

ROOT = Path(__file__).parents[3]
TEACHER = ROOT / "examples" / "teacher"
SMALL = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
HOSTS: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "gemma2": {"sliding_window": 16, "query_pre_attn_scalar": 24, "num_hidden_layers": 2},
    "mixtral": {"num_local_experts": 2, "num_experts_per_tok": 1},
    "gpt_oss": {"num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 16},
}
ON_HOSTS = {
    "qwen3": ("lolcats", "lawcat"),
    "gemma2": ("lolcats", "hybrid"),
    "mixtral": ("lawcat", "hybrid"),
    "gpt_oss": ("lolcats",),
}
"""Every host with two specs and every spec on two hosts or more; gpt_oss has attention sinks, and only a window can use them."""
OFFLOADED = ["lolcats", "lola", "lawcat", "gated-deltanet", "mamba3", "gpt_oss", "gemma2", "mixtral"]
ONE_LAYER = {"num_hidden_layers": 1}
IN_SPECS = parts_of(head for name in CAUSAL for head in on(name, LAW_SIZES).heads.values())
ELSEWHERE = [(role, kind) for role, kinds in CATALOGUE.items() for kind in kinds if (field_of(role), kind) not in IN_SPECS]
"""The parts of no spec above."""
ALIKE = {("score", kind) for kind in ("absolute_error", "overestimate", "relative_recall")}
"""Scores that compare a pair with what the state recalls, as `squared_error` does."""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny random model of each family, a Llama of one layer, and one layer of the teacher's size."""
    folders = {}
    for name, options in {"llama": {}, "one layer": ONE_LAYER, **HOSTS}.items():
        torch.manual_seed(0)
        folders[name], family = tmp_path_factory.mktemp("host"), name if name in HOSTS else "llama"
        AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **SMALL | options)).save_pretrained(folders[name])
    config = AutoConfig.from_pretrained(TEACHER, **ONE_LAYER)
    folders["one of the teacher"] = tmp_path_factory.mktemp("host")
    AutoModelForCausalLM.from_config(config).save_pretrained(folders["one of the teacher"])
    return folders


@pytest.mark.parametrize("name", FEW)
def test_files_of_shipped_specs_equal_their_models(name: str, hosts: dict[str, Path]) -> None:
    """In float64. A spec with equal layers is tested on one layer of the teacher's size, others on the teacher's two."""
    layers = resolve(load_spec(name, ["trunk=null"]), dimensions(describe_model(TEACHER).trunk)).layers
    model = randomised(
        composer.build(name, TEACHER if len(set(layers)) > 1 else hosts["one of the teacher"], overrides=["trunk=null"])
    )
    _, own = of_file(model)
    check_equal(model.double(), own.double(), 507)


@pytest.mark.parametrize("name", some(OFFLOADED, ["lola", "mamba3", "gpt_oss", "gemma2"]))
def test_offloaded_weights_change_nothing(name: str, hosts: dict[str, Path], tmp_path: Path) -> None:
    """accelerate loads the parameters of a module when the module is called, and removes them after it."""
    source = ("lolcats", hosts[name]) if name in HOSTS else (name, hosts["llama"])
    _, own = of_file(randomised(composer.build(*source)))
    tokens, mask = texts(SMALL["vocab_size"], SHORT)
    with torch.no_grad():
        expected = padded(own, tokens, mask), generated(own, tokens, mask)
    weights = {name: tensor.clone() for name, tensor in own.state_dict().items()}  # gemma2 ties its embeddings
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    own.generation_config.save_pretrained(tmp_path)
    options = {"device_map": "auto", "max_memory": {"cpu": "1KB"}, "offload_folder": str(tmp_path / "auto")}
    loaded = type(own).from_pretrained(tmp_path, config=own.config, **options)
    for offloaded in (
        loaded,
        cpu_offload(copy.deepcopy(own), torch.device("cpu")),
        disk_offload(own, str(tmp_path / "disk"), torch.device("cpu")),
    ):
        assert all(parameter.is_meta for parameter in offloaded.parameters())
        with torch.no_grad():
            torch.testing.assert_close(padded(offloaded, tokens, mask), expected[0])
            assert torch.equal(generated(offloaded, tokens, mask), expected[1])


def test_attention_weights_are_refused(hosts: dict[str, Path]) -> None:
    _, own = of_file(composer.build("lolcats", hosts["llama"]))
    tokens = torch.arange(3, 9)[None]
    with pytest.raises(ValueError, match="output_attentions: the heads of this file return no weights"):
        own(tokens, output_attentions=True)
    with pytest.raises(ValueError, match="output_attentions: the heads of this file return no weights"):
        own.generate(tokens, max_new_tokens=2, output_attentions=True, return_dict_in_generate=True)
    own.config._output_attentions = True
    with pytest.raises(ValueError, match="output_attentions: the heads of this file return no weights"):
        own(tokens)


@pytest.mark.parametrize("make", OTHER_CACHES)
def test_caches_of_other_classes_are_refused(make: Callable[[Any], Any], hosts: dict[str, Path]) -> None:
    _, own = of_file(composer.build("linear", hosts["llama"]))
    cache, tokens = make(own.config), torch.arange(3, 9)[None]
    for call in (own, partial(own.generate, max_new_tokens=2)):
        with pytest.raises(TypeError, match=f"is a {type(cache).__name__}; this model needs a LinearCache"):
            call(tokens, past_key_values=cache)


def test_a_profiler_does_not_change_a_file_and_continues_after_it(hosts: dict[str, Path]) -> None:
    model = composer.build("linear", hosts["llama"])
    expected = of_file(model)[0].text
    with cProfile.Profile() as profiler:
        text = write_file(model).text
        SHORT.bit_length()
    assert text == expected
    assert any("bit_length" in name for _, _, name in pstats.Stats(profiler).stats)  # pyright: ignore[reportAttributeAccessIssue]


@torch.no_grad()
@pytest.mark.parametrize("name", ["lolcats", "gated-deltanet", "lola"])
def test_decode_steps_of_files_equal_the_model_and_overwrite_states(name: str) -> None:
    """The steps of LoLA cross the ends of two chunks, where its file takes the method for any number of tokens."""
    model = randomised(composer.build(name, TEACHER))
    _, own = of_file(model)
    tokens, caches = texts(507, 130)[0][:2], []
    for each in (model, own):
        answer = each(tokens[:, :60], use_cache=True)
        logits, cache = [], answer.past_key_values
        before = dict(cache.layers[-1].tensors)
        for index in range(60, 130):
            logits.append(each(tokens[:, index : index + 1], past_key_values=cache, use_cache=True).logits)
        caches.append((torch.cat(logits, dim=1), before, cache.layers[-1].tensors))
    (expected, _, _), (result, before, after) = caches
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
    kept = {slot for slot in after if after[slot].data_ptr() == before[slot].data_ptr()}
    assert name == "lola" or kept >= {slot for slot in after if slot.startswith(("window", "state", "delta."))}


def test_a_cache_of_an_interrupted_call_is_refused() -> None:
    _, own = of_file(randomised(composer.build("lolcats", TEACHER)))
    tokens = torch.arange(9)[None]
    cache = own(tokens[:, :8], use_cache=True).past_key_values
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own.model.layers[1].self_attn, "forward", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            own(tokens[:, 8:], past_key_values=cache)
    with pytest.raises(ValueError, match="a call with it was interrupted. Begin with a new one"):
        own(tokens[:, 8:], past_key_values=cache)


def test_steps_do_not_overwrite_states_of_gradients_or_inference_mode() -> None:
    _, own = of_file(randomised(composer.build("lolcats", TEACHER)))
    tokens = texts(507, 70)[0]
    answer = own(tokens[:, :68], use_cache=True)
    with torch.no_grad():
        steps = [own(tokens[:, 68:69], past_key_values=answer.past_key_values, use_cache=True).logits]
    answer.logits.sum().backward()
    with torch.inference_mode():
        cache = own(tokens[:, :68], use_cache=True).past_key_values
    with torch.no_grad():
        steps.append(own(tokens[:, 68:69], past_key_values=cache, use_cache=True).logits)
    torch.testing.assert_close(*steps)


def test_lola_computes_64_tokens_at_once() -> None:
    exported, own = of_file(randomised(composer.build("lola", TEACHER)))
    assert exported.one_by_one is None
    head = own.model.layers[0].self_attn.composed["head"]
    sizes = []
    head.piece, piece = lambda *inputs: sizes.append(inputs[1].shape[1]) or piece(*inputs), head.piece
    with torch.no_grad():
        own(torch.arange(3, 133)[None])
    assert sizes == [64, 64, 64], "130 tokens are three pieces"


@pytest.mark.parametrize(("name", "lines"), [("lawcat", 650), ("lolcats", 720), ("gated-deltanet", 650), ("lola", 880)])
def test_files_and_their_forward_functions_are_short(name: str, lines: int) -> None:
    text = of_file(composer.build(name, TEACHER))[0].text
    assert text.count("\n") <= lines
    tree = ast.parse(text)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "forward"]
    assert all((node.end_lineno or 0) - node.lineno < 72 for node in functions)


@pytest.mark.parametrize(
    ("name", "field", "constant"),
    [
        ("lolcats", "head.memory.0.size", "window_size"),
        ("lawcat", "head.conv.kernel", "conv_size"),
        ("lolcats", "head.feature_map.dim", "map_size"),
        pytest.param("lawcat", "head.feature_map.dim", "map_size", marks=pytest.mark.full),
        pytest.param("lolcats-terraced", "head.memory.0.size", "window_size", marks=pytest.mark.full),
    ],
)
def test_another_size_changes_one_line(name: str, field: str, constant: str, hosts: dict[str, Path]) -> None:
    texts = [of_file(composer.build(name, hosts["llama"], overrides=[f"{field}={size}"]))[0].text for size in (24, 28)]
    pairs = zip(*(text.splitlines() for text in texts), strict=True)
    assert [pair for pair in pairs if pair[0] != pair[1]] == [(f"    {constant} = 24", f"    {constant} = 28")]


def test_named_sizes_of_a_file_do_not_change_later_models() -> None:
    write_file(composer.build("lolcats", TEACHER))
    heads = [head for layer in composer.build("lolcats", TEACHER).model.layers for head in layer.self_attn.composed.children()]
    sizes = [size for head in heads for slot in head._slots.values() for size in slot.shape]
    assert sizes
    assert {type(size) for size in sizes} == {int}


@pytest.mark.parametrize(("role", "kind"), some(ELSEWHERE, set(ELSEWHERE) - ALIKE))
def test_files_of_other_parts_equal_their_models(role: str, kind: str, hosts: dict[str, Path]) -> None:
    head = around(role.replace(" ", "_"), kind)
    model = randomised(composer.build({"compose": 1, "name": "part", "head": head}, hosts["one layer"]))
    _, own = of_file(model)
    check_equal(model, own, SMALL["vocab_size"], length=SHORT, gradients=False)


@pytest.mark.parametrize(("family", "name"), [(family, name) for family, names in ON_HOSTS.items() for name in names])
def test_files_of_other_hosts_equal_their_models(family: str, name: str, hosts: dict[str, Path]) -> None:
    model = randomised(composer.build(name, hosts[family]))
    _, own = of_file(model)
    check_equal(model, own, SMALL["vocab_size"])
    own.config._attn_implementation = "eager"
    check_equal(model, own, SMALL["vocab_size"], gradients=False)


@pytest.mark.parametrize("name", ["sdpa", "flex_attention", "flash_attention_2"])
def test_attention_implementations_of_transformers_do_not_replace_the_heads(name: str, hosts: dict[str, Path]) -> None:
    model = randomised(composer.build("linear", hosts["llama"]))
    _, own = of_file(model)
    own.config._attn_implementation = name
    check_equal(model, own, SMALL["vocab_size"], gradients=False)
    with pytest.raises(ValueError, match="cache_implementation='static': this model has a LinearCache"):
        own.generate(torch.arange(3, 9)[None], max_new_tokens=2, cache_implementation="static")


def test_files_are_deterministic_and_need_only_torch_and_transformers(hosts: dict[str, Path], tmp_path: Path) -> None:
    texts = [write(composer.build("lolcats", hosts["llama"])).text for write in (write_file, lambda model: of_file(model)[0])]
    assert texts[0] == texts[1]
    roots = {
        name.partition(".")[0]
        for node in ast.walk(ast.parse(texts[0]))
        for name in ([item.name for item in node.names] if isinstance(node, ast.Import) else [getattr(node, "module", None) or ""])
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert {"torch", "transformers"} <= roots <= {*sys.stdlib_module_names, "torch", "transformers", "fla"}
    file = tmp_path / "modeling_lolcats.py"
    file.write_text(texts[0])
    assert "fla" not in get_imports(file), "transformers would ask for it"


def test_text_of_a_spec_never_becomes_code(hosts: dict[str, Path]) -> None:
    paper = 'x"""\nimport os; os.environ["EXPORTED_CODE"] = "ran"\n"""\\'
    spec = {"compose": 1, "name": "quoted", "paper": paper, "head": {"feature_map": "elu", "memory": ["state"]}}
    exported, _ = of_file(composer.build(spec, hosts["llama"]))
    assert "EXPORTED_CODE" not in os.environ
    assert (ast.get_docstring(ast.parse(exported.text)) or "").startswith("quoted heads in a llama model.")


@pytest.mark.parametrize("read", [list, lambda place: place[0], lambda place: place[:1]])
def test_a_read_of_a_layers_place_is_noted(read: Callable[[Any], Any]) -> None:
    """A class of heads that reads it is not shared by layers."""
    place = LayerPlace((3, 1))
    assert not place.is_read
    read(place)
    assert place.is_read


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_caches_are_accepted_by_both_names_of_transformers(name: str, hosts: dict[str, Path]) -> None:
    """transformers 5.24 calls it `cache`, and earlier versions `past_key_values`."""
    _, own = of_file(randomised(composer.build("lolcats", hosts["llama"])))
    tokens = torch.arange(3, 60)[None]
    with torch.no_grad():
        whole = own.model(tokens).last_hidden_state
        first = own.model(tokens[:, :30])
        (cache,) = (value for value in first.values() if type(value).__name__ == "LolcatsCache")
        second = own.model(tokens[:, 30:], **{name: cache}).last_hidden_state
    torch.testing.assert_close(second, whole[:, 30:], rtol=0, atol=1e-5)
    with pytest.raises(TypeError, match="is a dict; this model needs a LolcatsCache"):
        own.model(tokens, **{name: {}})


@pytest.mark.parametrize("name", ["lambda", "step"])
def test_reserved_names_of_memories_are_refused(name: str, hosts: dict[str, Path]) -> None:
    window = {"kind": "window", "size": 8, "weight": "learned", "name": name}
    head = {"feature_map": "elu", "memory": [window, "state"]}
    with pytest.raises(ExportError, match=f"`{name}`"):
        of_file(composer.build({"compose": 1, "name": "named", "head": head}, hosts["llama"]))


@pytest.mark.parametrize(("title", "name"), [("1abc", "Composed1abc"), ("a\0b", "AB"), ("日本", "Composed")])
def test_any_name_and_paper_in_a_config_are_exported(title: str, name: str, hosts: dict[str, Path]) -> None:
    """A spec has neither name; a folder that was edited may have them."""
    model = randomised(composer.build("linear", hosts["llama"]))
    resolved = model.config.read_spec()
    model.config.spec = resolved.model_copy(update={"name": title, "paper": "p\0q\ud800"}).model_dump(mode="json")
    exported, own = of_file(model)
    assert exported.name == name
    check_equal(model, own, SMALL["vocab_size"], gradients=False)


def test_trunks_unlike_llama_are_refused() -> None:
    trunk = {"width": 32, "layers": 1, "heads": 2, "vocabulary": 61, "norm": "layer"}
    model = composer.build({"compose": 1, "name": "own", "head": {"memory": ["full"]}, "trunk": trunk}, fresh=True)
    with pytest.raises(ExportError, match="norm_type layer"):
        of_file(model)
