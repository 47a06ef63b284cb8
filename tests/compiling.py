"""Triton kernels compiled for GPUs that this machine does not have, and their use of resources. ``built`` runs in another
process, since Triton is interpreted in the processes of tests. Compiled kernels are cached beside pytest's cache, so an
unchanged kernel compiles once.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.composer.programs import printed_behind

CAPABILITIES = tuple(int(capability) for capability in os.environ.get("BUILD_FOR", "90").split(","))
"""Hopper's. ``BUILD_FOR=80,90 make test`` also builds for Ampere."""
BUILT = Path(__file__).parents[1] / ".pytest_cache" / "triton"
COMPILER = f"""
os.environ.pop("TRITON_INTERPRET", None)
os.environ["TRITON_CACHE_DIR"] = {str(BUILT)!r}
import blocks.kernels, tests.compiling, torch, triton.compiler
blocks.kernels.prepare()
tests.compiling.operations_alone()
"""
MEASURED = re.compile(r"REG:(?P<registers>\d+) .*?STACK:(?P<stack>\d+)")


@dataclass(frozen=True)
class Build:
    """A kernel and its launch. kernel: "MODULE:NAME". signature: the types of its arguments as Triton writes them ("*fp32",
    "i32", "fp32"). constants: the values of its constexpr arguments. options: num_warps, num_stages.
    """

    kernel: str
    signature: Mapping[str, str]
    constants: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Built:
    """The resources of a compiled kernel. registers: per thread. stack: spilled bytes. shared: bytes of shared memory. tf32:
    whether a product rounds float32 to TF32.
    """

    kernel: str
    capability: int
    registers: int
    stack: int
    shared: int
    tf32: bool


def built(builds: Iterable[Build], capabilities: Iterable[int] = CAPABILITIES) -> list[Built]:
    """Compile each kernel for each capability and print the result. Raises AssertionError with the compiler's message if it
    fails.
    """
    request = json.dumps({"capabilities": [*capabilities], "builds": [asdict(build) for build in builds]})
    output = printed_behind(COMPILER, f"from tests.compiling import print_built\nprint_built({request!r})")
    kernels = [Built(**kernels) for kernels in json.loads(output)]
    for kernel in kernels:
        print(kernel)
    return kernels


def operations_alone() -> None:
    """Import fla without its models, which take much longer than its operations, and without torch.compile, which it uses for
    some activations that no form here needs.
    """
    models = {name: None for name in ("fla.layers", "fla.models") if name not in sys.modules}
    sys.modules.update(models)  # pyright: ignore - None is how Python is told that there is no such module
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "compile", lambda function=None, **_: function or (lambda function: function))
            importlib.import_module("fla")
            importlib.import_module("fla.ops")
    finally:
        for name in models:
            del sys.modules[name]


def _built(build: Mapping[str, Any], capability: int) -> Built:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module, _, name = build["kernel"].partition(":")
    kernel = getattr(importlib.import_module(module), name)
    while not isinstance(kernel, triton.JITFunction):  # behind its autotuner and its heuristics
        kernel = kernel.fn
    signature = build["signature"] | dict.fromkeys(build["constants"], "constexpr")
    ordered = {argument: signature[argument] for argument in kernel.arg_names}
    # Tensors begin where 16 bytes do, and a launch says so.
    pointers = [place for place, kind in enumerate(ordered.values()) if kind.startswith("*")]
    aligned = {(place,): [["tt.divisibility", 16]] for place in pointers}
    source = ASTSource(kernel, ordered, constexprs=build["constants"], attrs=aligned)
    compiled: Any = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=build["options"])
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        output = subprocess.run((tool, "--dump-resource-usage", file.name), capture_output=True, text=True, check=True).stdout
    measured = MEASURED.search(output)
    assert measured, output
    taken = {name: int(value) for name, value in measured.groupdict().items()}
    return Built(build["kernel"], capability, **taken, shared=compiled.metadata.shared, tf32=".tf32" in compiled.asm["ptx"])


def print_built(request: str) -> None:
    """Print the results for the JSON request of ``built`` as JSON."""
    wanted = json.loads(request)
    print(json.dumps([asdict(_built(build, capability)) for build in wanted["builds"] for capability in wanted["capabilities"]]))
