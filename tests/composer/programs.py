"""Programs of their own: what one imports is seen from outside."""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from composer.cli.entry import main
from tests.composer.training.processes import ending, forked

ROOT = Path(__file__).parents[2]
LIBRARIES = """
import torch, torch._dynamo, torch.distributed.tensor, torch.utils.data, numpy, safetensors.torch, tokenizers, huggingface_hub
import PIL.Image, accelerate, jaxtyping, jinja2, networkx, psutil, pydantic.fields, regex, scipy.optimize, yaml
from huggingface_hub import HfApi
assert not {"transformers", "composer", "blocks"} & sys.modules.keys()
"""
"""What transformers and we import, without anything of either."""
COMPOSER = """
import gc, torch, composer
from tests.composer.model.models import llama, tokens
torch.set_num_threads(1)
model = composer.build("softmax", llama(num_hidden_layers=1))
torch.compile(model, backend="eager", dynamic=False)(tokens(2, 3), use_cache=False)
torch.export.export(torch.nn.Linear(1, 1), (torch.ones(1, 1),), strict=True).module()
torch._dynamo.reset()
gc.collect(), gc.freeze(), gc.set_threshold(100_000, 50, 50)
"""
"""All of ours, with no shape checked at every call, which no compiler looks through; and the compiler, which reads much of itself
at its first model."""
STARTER = f"""
import json, os, sys, tempfile, traceback
sys.path.insert(0, {str(ROOT)!r})
exec(sys.argv[1])
for line in sys.stdin:
    asked = json.loads(line)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        process = os.fork()
        if not process:
            code = 1
            try:
                os.dup2(out.fileno(), 1)
                os.dup2(errors.fileno(), 2)
                os.chdir(asked["folder"])
                exec(compile(asked["code"], "program", "exec"), {{"__name__": "__main__", "sys": sys}})
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        ended = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        out.seek(0), errors.seek(0)
        answer = [ended, out.read().decode(), errors.read().decode()]
    print(json.dumps(answer), flush=True)
"""


def printed(code: str, folder: Path = ROOT) -> str:
    """What a program prints, started in ``folder`` with nothing imported. A program that fails fails the test."""
    code = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{textwrap.dedent(code)}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def composed(folder: Path, *arguments: object, encoding: str = "utf-8") -> tuple[int, bytes, bytes]:
    """How ``compose …`` ends that starts in a folder, and what it prints, in the encoding of its terminal.

    The console script, in a copy of this process: what takes seconds is to import what it imports.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors, open(os.devnull) as nothing:

        def child() -> None:
            for number, stream in enumerate((nothing, out, errors)):
                os.dup2(stream.fileno(), number)
            # As Python opens them at its start.
            sys.stdout = open(1, "w", encoding=encoding, closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", encoding=encoding, errors="backslashreplace", closefd=False)  # noqa: SIM115
            os.chdir(folder)
            sys.argv = ["compose", *map(str, arguments)]
            main()

        ended = ending(forked(child))
        out.seek(0), errors.seek(0)
        return ended, out.read(), errors.read()


def printed_behind_libraries(code: str, folder: Path = ROOT) -> str:
    """The same with torch and other libraries imported, but nothing of transformers and nothing of ours.

    A process that has imported them copies itself for each program.
    """
    return printed_behind(LIBRARIES, code, folder)


def printed_behind_composer(code: str, folder: Path = ROOT) -> str:
    """The same behind all that a model needs, and its compiler."""
    return printed_behind(COMPOSER, code, folder)


def printed_behind(imports: str, code: str, folder: Path = ROOT) -> str:
    """What a program prints in a copy of a process that has run these imports, which stays there for the next one."""
    starter = _starter(imports)
    assert starter.stdin is not None
    assert starter.stdout is not None
    starter.stdin.write(json.dumps({"code": textwrap.dedent(code), "folder": str(folder)}) + "\n")
    starter.stdin.flush()
    ended, out, errors = json.loads(starter.stdout.readline())
    assert ended == 0, errors
    return out.strip()


@functools.cache
def _starter(imports: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", STARTER, imports]
    starter = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(starter.wait)
    atexit.register(starter.kill)  # which runs first
    return starter
