"""Programs in other processes, whose imports are visible from outside."""

from __future__ import annotations

import atexit
import errno
import functools
import json
import os
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import zlib
from pathlib import Path
from typing import TextIO

from composer.cli.entry import main
from composer.exporting import comparison_worker
from tests.composer.training.processes import ending, forked

ROOT = Path(__file__).parents[2]
LIBRARIES = """
import torch, torch._dynamo, torch.distributed.checkpoint, torch.distributed.fsdp, torch.distributed.tensor, torch.utils.data
import PIL.Image, accelerate, jinja2.sandbox, networkx, numpy, psutil, pydantic.fields, regex, scipy.optimize, yaml
import huggingface_hub.repocard, safetensors.torch, tokenizers
from huggingface_hub import HfApi
import blocks.catalogue
assert not {"transformers", "composer", "converters"} & sys.modules.keys()
"""
"""What transformers and we import: nothing of transformers, and of ours only the parts, which know neither it nor the composer."""
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
LOADER = f"""
import sys
sys.modules.update(dict.fromkeys({comparison_worker.ABSENT!r}))
import runpy, torch, safetensors.torch, transformers.dynamic_module_utils
from transformers.models.llama.modeling_llama import LlamaForCausalLM
torch.set_num_threads(1)
"""
"""What the process of ``composer/exporting/comparison.py`` imports before it reads an export."""
STARTER = f"""
import json, os, socket, sys, tempfile, traceback
sys.path.insert(0, {str(ROOT)!r})
door, path, serving = socket.socket(fileno=os.dup(0)), sys.argv[2], set()
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
try:
    exec(sys.argv[1])
except BaseException:
    os.unlink(path)
    raise

def run(asked, out, errors):
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

def serve(connection):
    with connection.makefile("rw") as talk:
        for line in talk:
            with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
                process = os.fork()
                if not process:
                    run(json.loads(line), out, errors)
                ended = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
                out.seek(0), errors.seek(0)
                answer = [ended, out.read().decode(), errors.read().decode()]
            talk.write(json.dumps(answer) + chr(10))
            talk.flush()

door.settimeout(0.2)
while True:
    try:
        connection = door.accept()[0]
    except TimeoutError:
        while serving and (gone := os.waitpid(-1, os.WNOHANG)[0]):
            serving.discard(gone)
        if serving:
            continue
        if not os.path.exists(path):
            break
        os.unlink(path)  # whoever comes from here on starts another; whoever has come is still let in
        continue
    process = os.fork()
    if not process:
        door.close()
        try:
            serve(connection)
        finally:
            os._exit(0)
    connection.close()
    serving.add(process)
"""
"""Copies itself for each program; for all processes of the tests, and until the last of them has gone."""
RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
PLACE = tempfile.gettempdir()
PATIENCE = 60.0


def printed(code: str, folder: Path = ROOT) -> str:
    """Return the output of a program that starts in ``folder`` with nothing imported. If it fails, the test fails."""
    code = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{textwrap.dedent(code)}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def begun(folder: Path, *arguments: object, stdout: int, stderr: int, encoding: str = "utf-8") -> int:
    """Start ``compose …`` in a folder and return its process id. It runs in a fork of this process, since imports take seconds.
    stdout, stderr: descriptors. encoding: of its terminal.
    """

    def child() -> None:
        with open(os.devnull) as nothing:
            for number, descriptor in enumerate((nothing.fileno(), stdout, stderr)):
                os.dup2(descriptor, number)
        # As Python opens them at its start.
        sys.stdout = open(1, "w", encoding=encoding, closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding=encoding, errors="backslashreplace", closefd=False)  # noqa: SIM115
        os.chdir(folder)
        sys.argv = ["compose", *map(str, arguments)]
        main()

    return forked(child)


def composed(folder: Path, *arguments: object, encoding: str = "utf-8") -> tuple[int, bytes, bytes]:
    """Return the exit code and the output of such a ``compose …``."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        ended = ending(begun(folder, *arguments, stdout=out.fileno(), stderr=errors.fileno(), encoding=encoding))
        out.seek(0), errors.seek(0)
        return ended, out.read(), errors.read()


def printed_behind_libraries(code: str, folder: Path = ROOT) -> str:
    """Run a program after importing torch, other libraries and ``blocks``, but neither transformers nor composer. A process with
    these imports forks for each program.
    """
    return printed_behind(LIBRARIES, code, folder)


def printed_behind_composer(code: str, folder: Path = ROOT) -> str:
    """Run a program after all imports of a model and its compiler."""
    return printed_behind(COMPOSER, code, folder)


def printed_behind(imports: str, code: str, folder: Path = ROOT) -> str:
    """Return the output of a program in a fork of a process with these imports. The process stays for the next program."""
    talk = _starter(imports)
    try:
        talk.write(json.dumps({"code": textwrap.dedent(code), "folder": str(folder)}) + "\n")
        talk.flush()
        answer = talk.readline()
    except OSError:
        answer = ""
    assert answer, "the process that programs are copied from has ended, with the words above"
    ended, out, errors = json.loads(answer)
    assert ended == 0, errors
    return out.strip()


def load_behind_libraries(command: list[str], *, env: dict[str, str], **_: object) -> subprocess.CompletedProcess[str]:
    """Load exports in place of ``subprocess.run`` in ``composer/exporting/comparison.py``: in a fork of a process that has imported
    torch and transformers, which takes seconds, and cannot import this package.
    """
    program = command[command.index(comparison_worker.__file__) :]
    modules = env["HF_MODULES_CACHE"]
    code = f"transformers.dynamic_module_utils.HF_MODULES_CACHE = {modules!r}\nrunpy.run_path(sys.argv[0], run_name='__main__')"
    printed_behind(LOADER, f"import runpy, transformers.dynamic_module_utils\nsys.argv = {program!r}\n{code}")
    return subprocess.CompletedProcess(command, 0, "", "")


@functools.cache
def _starter(imports: str) -> TextIO:
    """Return a connection to the process with these imports. The first caller starts it for all test processes."""
    path = os.path.join(PLACE, f"composer-{RUN}-{zlib.crc32(imports.encode()):x}")
    connection = socket.socket(socket.AF_UNIX)
    with socket.socket(socket.AF_UNIX) as door:
        try:
            door.bind(path)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            _connect(connection, path)
        else:
            door.listen()
            connection.connect(path)
            command = [sys.executable, "-c", STARTER, imports, path]
            process = subprocess.Popen(command, stdin=door, stdout=subprocess.DEVNULL, cwd=ROOT, start_new_session=True)
            atexit.register(process.wait)
    talk = connection.makefile("rw")
    atexit.register(connection.close)
    atexit.register(talk.close)  # which runs first
    return talk


def _connect(connection: socket.socket, path: str) -> None:
    """Connect to a process that is listening, or about to."""
    last = time.monotonic() + PATIENCE
    while True:
        try:
            return connection.connect(path)
        except ConnectionRefusedError:
            assert time.monotonic() < last, f"nothing listens at {path}"
            time.sleep(0.05)
