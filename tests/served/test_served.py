"""Under vLLM a composed model writes the text of ``generate``: every shipped spec, several hosts, adapters, exports, and over
HTTP. vLLM is needed, which ``make serve-test`` installs into a separate environment.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: make serve-test")

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from vllm import ModelRegistry

import composer
from composer.spec.loading import load_spec
from composer.vllm import register
from composer.vllm.check import check_served, compare_written, serve_texts, write_greedily
from composer.vllm.engine import ServedModel
from composer.vllm.pages import Pages
from tests.composer.exporting.models import randomised

ROOT = Path(__file__).parents[2]
TEACHER = ROOT / "examples" / "teacher"
CAUSAL = [path.stem for path in sorted((ROOT / "specs").glob("*.yaml")) if load_spec(path.stem).direction == "causal"]
SMALL: dict[str, Any] = {
    "vocab_size": 503, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 32, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "initializer_range": 0.2,
}  # fmt: skip
HOSTS: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "gemma2": {"sliding_window": 32, "query_pre_attn_scalar": 32},
    "mixtral": {"num_local_experts": 2, "num_experts_per_tok": 1},
    "gpt_oss": {"num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 32},
}
STORY = "once upon a time there was a gentle child who lived near the river. In the house he found an old letter from her brother. "
ABORTED = 50
"""The number of the request that is given up."""
HALF = {
    "compose": 1,
    "name": "half",
    "head": {"memory": [{"kind": "window", "size": 16}, {"kind": "state"}], "feature_map": {"kind": "hedgehog"}},
    "layers": [{"at": [0], "use": "source"}],
}
"""A kept softmax layer before one with states, so that vLLM has pages of both kinds."""
BY_HEAD = HALF | {
    "name": "by-head",
    "layers": [
        {"at": layer, "use": [{"head": "source", "heads": [1 - layer]}, {"head": "head", "heads": "rest"}]} for layer in (0, 1)
    ],
}
"""Layers of which another key head each keeps the source's attention, so that one layer has pages of both kinds."""


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    """Return the class itself, which vLLM would otherwise inspect in another process."""
    register()
    for name in ModelRegistry.get_supported_archs():
        if name.startswith("Composed"):
            ModelRegistry.register_model(name, ServedModel)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny random model of each family."""
    folders = {}
    for family, options in HOSTS.items():
        torch.manual_seed(0)
        folders[family] = tmp_path_factory.mktemp(family)
        AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **SMALL | options)).save_pretrained(folders[family])
    return folders


def built(spec: Any, source: Path, out: Path) -> Path:
    composer.build_folder(spec, source, out=out, overrides=["trunk=null"])
    return out


def check(folder: Path, **options: Any) -> None:
    assert not [made.detail for made in check_served(folder, **options) if made.outcome != "passed"]


@pytest.mark.parametrize("name", CAUSAL)
def test_shipped_specs_pass_the_check_under_vllm(name: str, tmp_path: Path) -> None:
    check(built(name, TEACHER, tmp_path / name))


ON_HOSTS = [(family, name) for family in HOSTS for name in ("lolcats", "lawcat", "gated-deltanet", "gdn-hybrid")]
WITHOUT_MASS = ("gated-deltanet", "gdn-hybrid")
"""Their answers have no mass, which the attention sinks of gpt-oss add to, so that they cannot be built on it."""


@pytest.mark.parametrize(
    ("family", "name"), [(family, name) for family, name in ON_HOSTS if family != "gpt_oss" or name not in WITHOUT_MASS]
)
def test_students_of_several_hosts_pass_the_check_under_vllm(
    family: str, name: str, hosts: dict[str, Path], tmp_path: Path
) -> None:
    check(built(name, hosts[family], tmp_path / name))


@pytest.mark.parametrize("options", [{}, {"num_gpu_blocks_override": 8}], ids=["pages of both kinds", "requests are put back"])
def test_a_kept_softmax_layer_passes_the_check(options: dict[str, Any], tmp_path: Path) -> None:
    check(built(HALF, TEACHER, tmp_path / "half"), **options)


def test_kept_key_heads_pass_the_check(tmp_path: Path) -> None:
    check(built(BY_HEAD, TEACHER, tmp_path / "by-head"))


@pytest.mark.parametrize("name", ["lolcats", "forgetting"])
def test_texts_with_a_common_prefix_match(name: str, tmp_path: Path) -> None:
    text = torch.randint(0, 507, (260,), generator=torch.Generator().manual_seed(2)).tolist()
    texts = [text[:length] for length in (200, 190, 220, 100, 260, 215, 20)]
    check(built(name, TEACHER, tmp_path / name), texts=texts, enable_prefix_caching=True)


def test_adapters_and_exports_pass_the_check(tmp_path: Path) -> None:
    folder = built("lolcats", TEACHER, tmp_path / "built")
    text = tmp_path / "text.txt"
    text.write_text("The cat sat on the mat. " * 400)
    recipe = ["recipe.sequence=64"]
    recipe += [f"recipe.{stage}.{key}" for stage in ("transfer", "finetune") for key in ("epochs=null", "steps=3")]
    composer.distill(folder, str(text), tmp_path / "trained", overrides=recipe)
    check(tmp_path / "trained")
    composer.export(tmp_path / "trained", out=tmp_path / "export")
    check(tmp_path / "export")


@pytest.mark.parametrize("target", ["source", "mistral", "ministral"])
def test_vllm_s_own_classes_have_the_text_of_native_folders(target: str, tmp_path: Path) -> None:
    spec = "softmax" if target == "source" else composer.new(tmp_path / "spec", target=target, source=TEACHER)
    overrides = [] if target == "source" else ["head.memory.0.size=16"]
    randomised(composer.build(spec, TEACHER, overrides=overrides)).save_pretrained(tmp_path / "student")
    composer.export(tmp_path / "student", tmp_path / "native", native=True, target=target)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "native", dtype=torch.float32)
    drawn = torch.randint(3, 507, (297,), generator=torch.Generator().manual_seed(0))
    texts = [text.tolist() for text in drawn.split((1, 16, 100, 180))]
    wanted = [write_greedily(model, text) for text in texts]  # vLLM changes classes of transformers that it runs
    written = list(serve_texts(tmp_path / "native", texts, config_format="auto"))
    assert not [made.detail for made in compare_written(texts, wanted, written) if made.outcome != "passed"]


def test_dropped_states_are_detected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = built("lolcats", TEACHER, tmp_path / "built")
    monkeypatch.setattr(Pages, "write", lambda *_: None)
    with pytest.raises(AssertionError, match="vLLM writes others"):
        check(folder)


def test_two_processes_serve_what_one_serves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In a layer of softmax, vLLM's own attention has half of the key heads, too."""
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    check(built(HALF, TEACHER, tmp_path / "half"), tensor_parallel_size=2)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("mixed-heads", {"tensor_parallel_size": 2}, "'lolcats' of layer 0 has 1 key heads, which 2 processes cannot share"),
        ("lolcats", {"pipeline_parallel_size": 2}, "not served with --pipeline-parallel-size"),
        ("lolcats", {"quantization": "fp8", "dtype": "bfloat16"}, "not served with --quantization"),
        ("lolcats", {"enable_lora": True}, "not served with --enable-lora: adapters are part of the folder"),
    ],
)
def test_unsupported_models_are_refused(
    name: str, options: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("composer.vllm.engine.load_for_serving", None)
    folder = built(name, TEACHER, tmp_path / "built")
    with pytest.raises(ValueError, match=words):
        list(serve_texts(folder, [[1]], **options))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of vLLM's OpenAI server, and the served folder."""
    folder = built("lolcats", TEACHER, tmp_path_factory.mktemp("served") / "lolcats")
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": template}))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--served-model-name", "cat"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager", "--max-model-len", "256"]
    command += ["--max-num-batched-tokens", "64", "--block-size", "32"]  # so that prefix caching has much to find
    environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    log = tmp_path_factory.mktemp("log") / "server.log"
    with log.open("w") as written, subprocess.Popen(command, env=environment, stdout=written, stderr=written) as process:
        address, end = f"http://127.0.0.1:{port}", time.monotonic() + 900
        try:
            while True:
                try:
                    urllib.request.urlopen(f"{address}/health", timeout=5)
                    break
                except OSError:
                    assert process.poll() is None, log.read_text()[-3000:]
                    assert time.monotonic() < end, log.read_text()[-3000:]
                    time.sleep(0.5)
            yield address, folder
        finally:
            process.terminate()


def post(address: str, path: str, **body: Any) -> Any:
    """Return the opened response of the server."""
    data = json.dumps({"model": "cat", "temperature": 0, "max_tokens": 24, **body}).encode()
    request = urllib.request.Request(f"{address}/v1/{path}", data, {"Content-Type": "application/json"})
    return urllib.request.urlopen(request, timeout=300)


def test_two_hundred_requests_and_one_that_is_aborted(server: tuple[str, Path]) -> None:
    address, folder = server
    tokenizer, model = AutoTokenizer.from_pretrained(folder), composer.load(folder)
    story = tokenizer(STORY * 12)["input_ids"]
    prompts = [story[number : number + 1 + number * 37 % 90] for number in range(200)]

    def ask(number: int) -> list[int]:
        if number == ABORTED:
            with post(address, "completions", prompt=prompts[number], max_tokens=150, stream=True, ignore_eos=True) as answer:
                assert answer.readline().startswith(b"data:")
            return []
        with post(address, "completions", prompt=prompts[number], ignore_eos=True, return_token_ids=True) as answer:
            return json.load(answer)["choices"][0]["token_ids"]

    with ThreadPoolExecutor(32) as asking:
        written = list(asking.map(ask, range(200)))
    options = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    wanted = []
    for number in set(range(0, 200, 4)) - {ABORTED}:
        with torch.no_grad():
            ids = torch.tensor([prompts[number]])
            wanted.append(model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, ids.shape[1] :].tolist())
        assert written[number] == wanted[-1], number
    assert len(set(map(tuple, wanted))) > len(wanted) / 2, "texts differ, so that another's would show"


def test_a_conversation_in_pieces_matches_one_request(server: tuple[str, Path]) -> None:
    messages = [{"role": "user", "content": "once upon a time"}]
    with post(server[0], "chat/completions", messages=messages) as answer:
        whole = json.load(answer)["choices"][0]["message"]["content"]
    with post(server[0], "chat/completions", messages=messages, stream=True) as answer:
        lines = [line.decode().removeprefix("data: ") for line in answer if line.startswith(b"data: {")]
    pieces = [json.loads(line)["choices"][0]["delta"].get("content") or "" for line in lines]
    assert whole
    assert "".join(pieces) == whole
