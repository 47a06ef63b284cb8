"""Plants faults in the product, one after the other, and lists those that the tests do not find: ``make mutants``.

Each fault replaces one text of one file in a copy of the repository: a flipped sign, a dropped mask, a shifted index, a removed
check. The tests of the fault's files run until the first one fails. A fault whose text is no longer in its file is an error, and so
is a fault that survives.

    python -m tests.mutants [WORD ...] [--full] [--list]

WORD: only faults whose file contains one of these words. --full: run the tests marked ``full``, too.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
SECONDS = 1800
"""After so long, the tests of a fault are stopped. A fault that makes them hang counts as killed."""
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRITON_INTERPRET": "1",
}


class Fault(NamedTuple):
    file: str
    tests: str
    before: str
    after: str


LAWS = "laws/test_definition.py laws/test_batch.py laws/test_split.py"
WINDOW = f"blocks/memories/test_window.py blocks/memories/test_terraced.py {LAWS}"
MODEL = "composer/model/test_generation.py composer/model/test_cache.py composer/model/test_in_place.py"
ROWS = "composer/model/test_rows.py composer/model/test_documents.py"
GRAPH = "composer/graph"
STUDENTS = "composer/exporting/test_native.py composer/exporting/targets"
FAULTS: dict[str, tuple[str, dict[str, str]]] = {
    "blocks/memories/window.py": (
        WINDOW,
        {
            "(back >= 0) & (back <= farthest)": "(back >= 0) & (back < farthest)",
            "position = position.masked_fill(~tokens.valid, -1)": "pass",
            "position.masked_fill(segment[:, :length] != segment[:, size:], -1)": "position.clone()",
            "last_pairs.position.masked_fill(~current, -1)": "last_pairs.position",
            "mask_bias(back <= tokens.position": "mask_bias(back < tokens.position",
        },
    ),
    "blocks/recurrences/additive/chunked.py": (
        "blocks/recurrences/additive",
        {"decay_between(decay).exp().tril()": "decay_between(decay).exp().tril(-1)"},
    ),
    "blocks/recurrences/delta/chunked.py": (
        "blocks/recurrences/delta",
        {"decay.cumsum(4).exp()[..., None]": "decay.exp()[..., None]"},
    ),
    "blocks/recurrences/delta/recurrent.py": (
        "blocks/recurrences/delta",
        {"(value.view(batch, key_heads, 1, width) - recalled)": "(value.view(batch, key_heads, 1, width) + recalled)"},
    ),
    "blocks/positions.py": (f"blocks/test_positions.py {LAWS}", {"dims=-1).mul_(sine))": "dims=-1).mul_(-sine))"}),
    "blocks/reads.py": ("blocks/test_reads.py", {"logits[0] - logits[1]": "logits[1] - logits[0]"}),
    "blocks/memories/recurrent.py": (
        LAWS,
        {"log_decay.masked_fill(~valid.view(*valid.shape, *[1] * (log_decay.dim() - 2)), 0.0)": "log_decay"},
    ),
    "blocks/memories/sparse.py": (
        f"blocks/memories/test_sparse.py {LAWS}",
        {'cache["position"].masked_fill(cache["segment"] != tokens.last_segment()[..., None], -1)': 'cache["position"]'},
    ),
    "blocks/memories/latents.py": (
        f"blocks/memories/test_latents.py {LAWS}",
        {"key.masked_fill(~call.tokens.valid[..., None, None], -math.inf)": "key"},
    ),
    "blocks/memories/full.py": (
        f"blocks/memories/test_full.py {LAWS}",
        {"position.masked_fill(tokens.extend_segment(earlier) != tokens.last_segment(), -1)": "position"},
    ),
    "blocks/gates/constant.py": ("blocks/gates", {"exp2(-self.exponent - heads)": "exp2(-self.exponent - heads - 1)"}),
    "blocks/convolution.py": ("blocks/test_convolution.py", {"Slot((self.kernel - 1, *sizes)": "Slot((self.kernel, *sizes)"}),
    "blocks/recurrences/stabilised.py": (
        f"blocks/recurrences/test_stabilised.py {LAWS}",
        {"decay + shift": "decay - shift"},
    ),
    "composer/model/rows.py": (
        f"composer/model/test_rows.py composer/model/test_documents.py {MODEL}",
        {
            "(position[:, 1:] <= position[:, :-1])": "(position[:, 1:] < position[:, :-1])",
            "else seen + self.tokens.count()": "else self.tokens.count()",
            "starts = starts & valid": "starts = starts.clone()",
        },
    ),
    "composer/model/cache.py": (
        f"{MODEL} composer/model/test_cuda_graph.py",
        {
            "remaining -= call.length": "remaining -= 1",
            "self.columns -= tokens_to_remove": "self.columns -= 0",
            "== seen).all())": "== seen).any())",
        },
    ),
    "composer/model/attention.py": (MODEL, {"layer_state.differentiated or torch.is_grad_enabled()": "torch.is_grad_enabled()"}),
    "composer/model/state_file.py": ("composer/model/test_state_file.py", {"- 1 - place) % count": "- place) % count"}),
    "composer/model/generation.py": (f"{MODEL} composer/model/test_state_file.py", {"columns == length + 1": "columns == length"}),
    "composer/graph/composition.py": (GRAPH, {"[ALL, *names], strict=False": "[ALL, ALL, *names], strict=False"}),
    "composer/graph/rules.py": (GRAPH, {"        if memory.bounded:\n            continue\n": "        continue\n"}),
    "composer/graph/wiring.py": (
        f"{GRAPH} blocks/test_sinks.py",
        {'self.value = ("conv", "value")': "pass", "if self.memory[name].exact), masses[0])": "if False), masses[0])"},
    ),
    "composer/graph/program.py": (
        "composer/graph/test_program.py",
        {"if not inputs.value_is_final:": "if True:"},
    ),
    "composer/graph/lowering.py": (
        f"{GRAPH} laws/test_batch.py",
        {"= lower(self.graph, backend, setting)": "= lower(self.graph, backend, setting._replace(documents=False))"},
    ),
    "composer/weights/plan.py": ("composer/weights/test_plan.py", {"elif parameters[name].shape != shape:": "elif False:"}),
    "composer/weights/save.py": (
        "composer/weights/test_save.py",
        {"if not torch.equal(expected.to(part.dtype), part):": "if False:"},
    ),
    "composer/weights/output.py": (
        "composer/weights/test_output.py composer/building",
        {"if needed > free:": "if needed > 2 * free:"},
    ),
    "composer/weights/stream.py": ("composer/weights/test_stream.py", {"(~tensor.isfinite()).sum()": "tensor.isnan().sum()"}),
    "composer/weights/verify.py": ("composer/weights/test_verify.py", {"if not again.has_hash(record.spec_hash):": "if False:"}),
    "composer/weights/lolcats.py": ("published/test_lolcats_llama.py", {"product.scale * (up": "-product.scale * (up"}),
    "composer/training/transfer.py": (
        "composer/training/test_transfer.py composer/training/test_model_transfer.py",
        {
            "losses.masked_fill(~tokens.valid, 0.0).sum()": "losses.sum()",
            "error.masked_fill(~batch.valid, 0.0).sum()": "error.sum()",
        },
    ),
    "composer/training/loop.py": ("composer/training/test_loop.py", {"= step + 1, self.tokens": "= step, self.tokens"}),
    "composer/training/rows.py": (
        "composer/training/test_rows.py",
        {"passes <= MOST_PASSES and len(rows)": "passes <= MOST_PASSES or len(rows)"},
    ),
    "composer/training/finetune.py": (
        "composer/training/test_finetune.py",
        {'.weight.detach() + module.get_delta_weight("default")': '.weight.detach() - module.get_delta_weight("default")'},
    ),
    "composer/exporting/targets/target.py": (
        f"{STUDENTS} composer/exporting/gguf",
        {"return weight - 1": "return weight", ".transpose(1, 2).flatten(0, 2)": ".flatten(0, 2)"},
    ),
    "composer/exporting/targets/fit.py": (STUDENTS, {"if path in kind.any_value:": "if path:"}),
    "composer/exporting/folding.py": (
        "composer/exporting/test_functions.py composer/exporting/test_modeling.py",
        {"return first if all(fact == first for fact in facts) else None": "return first"},
    ),
    "composer/exporting/verify.py": ("composer/exporting/test_folder.py", {"if name in problems:": "if False:"}),
}
"""By file: the files of tests that should find its faults, in ``tests/``, and the text that replaces another in each fault."""


class First:
    """A plugin of pytest that writes the name of the first test that fails, or the stage that fails before any."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._note(report)

    def pytest_collectreport(self, report: Any) -> None:
        self._note(report)

    def _note(self, report: Any) -> None:
        if report.failed and not self.place.exists():
            self.place.write_text(report.nodeid, encoding="utf-8")


def list_faults(words: list[str]) -> list[Fault]:
    """Return the faults in files whose names contain one of the words, or all faults."""
    files = {file: faults for file, faults in FAULTS.items() if not words or any(word in file for word in words)}
    return [Fault(file, tests, *texts) for file, (tests, replaced) in files.items() for texts in replaced.items()]


def check(faults: list[Fault]) -> None:
    """Raise SystemExit with all faults whose text is not exactly once in its file, or whose tests do not exist."""
    problems = []
    for fault in faults:
        count = (ROOT / fault.file).read_text(encoding="utf-8").count(fault.before) if (ROOT / fault.file).is_file() else 0
        if count != 1:
            problems.append(f"{fault.file}: {fault.before!r} occurs {count} times; expected 1. Change the fault")
        problems += [
            f"{fault.file}: there is no tests/{name}" for name in fault.tests.split() if not (ROOT / "tests" / name).exists()
        ]
    if problems:
        raise SystemExit("\n".join(problems))


def copy_repository(target: Path) -> None:
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes((ROOT / name).read_bytes())


def run(fault: Fault, copied: Path, *, full: bool) -> str | None:
    """Return the first test that fails with a fault, or None. Raises SystemExit if the tests do not start without the fault."""
    file, first = copied / fault.file, copied / "first"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace(fault.before, fault.after), encoding="utf-8")
    first.unlink(missing_ok=True)
    status = _status(fault, copied, first, *(["--full"] if full else []))
    file.write_text(text, encoding="utf-8")
    if status == 0:
        return None
    killer = first.read_text(encoding="utf-8") if first.exists() else f"ended with {status}"
    if "::" not in killer and _status(fault, copied, copied / "unused", "--collect-only") != 0:
        raise SystemExit(f"The tests of {fault.file} are not collected without the fault:\n{(copied / 'output').read_text()}")
    return killer


def _status(fault: Fault, copied: Path, first: Path, *options: str) -> int:
    """Run the tests of a fault in another process. Return its status, or minus the signal that ended it."""
    child = os.fork()
    if not child:
        _run_tests(fault, copied, first, options)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _run_tests(fault: Fault, copied: Path, first: Path, options: tuple[str, ...]) -> None:
    """Run the tests in this process, which has only imported other packages, and end it."""
    status = 1
    try:
        signal.alarm(SECONDS)
        output = os.open(copied / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1), os.dup2(output, 2)
        os.chdir(copied)
        sys.path.insert(0, str(copied))
        for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "composer", "blocks", "converters")]:
            del sys.modules[name]
        sys.dont_write_bytecode = True
        import pytest

        options = ("-n0", "-q", "-x", "-p", "no:cacheprovider", "--randomly-dont-reorganize", *options)
        status = int(pytest.main([*options, *(f"tests/{name}" for name in fault.tests.split())], plugins=[First(first)]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(status)


def main() -> None:
    parser = argparse.ArgumentParser(description="Plant faults, one after the other, and list those that the tests do not find.")
    parser.add_argument("words", nargs="*", metavar="WORD", help="Only faults whose file contains one of these.")
    parser.add_argument("--full", action="store_true", help="Run the tests marked full, too.")
    parser.add_argument("--list", action="store_true", help="Check the faults and list them, and run nothing.")
    options = parser.parse_args()
    check(list_faults([]))
    faults = list_faults(options.words)
    if options.list:
        print("\n".join(f"{fault.file}: {fault.before!r} → {fault.after!r}" for fault in faults))
        return
    os.environ.update(ENVIRONMENT)
    import hypothesis  # noqa: F401 - once, for all processes that are forked
    import torch

    torch.set_num_threads(1)
    survived = 0
    with tempfile.TemporaryDirectory(prefix="composer-mutants-") as folder:
        copied = Path(folder)
        copy_repository(copied)
        for fault in faults:
            began = time.monotonic()
            killer = run(fault, copied, full=options.full)
            survived += killer is None
            verdict = "SURVIVED" if killer is None else "killed"
            line = f"{verdict:8}  {fault.file}: {fault.before.strip()!r} → {fault.after.strip()!r}"
            print(f"{line}  ({killer or fault.tests}, {time.monotonic() - began:.0f} s)", flush=True)
    print(f"{len(faults) - survived} of {len(faults)} faults were found.")
    raise SystemExit(survived > 0)


if __name__ == "__main__":
    main()
