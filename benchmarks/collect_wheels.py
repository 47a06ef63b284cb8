"""Collect the wheels that benchmarks and tests need on a GPU machine that reaches no package registry.

    python -m benchmarks.collect_wheels FOLDER [--python 3.12] [--machine x86_64]

torch, Triton and transformers with all that they need are expected there. Of everything else that `make gpu-speed` and `make gpu`
import, the versions of constraints.txt are downloaded, with what these require. This project's own wheel is built. The files are
listed with their sizes; together they have at most 40 MB. `make gpu-speed WHEELS=FOLDER` installs them into a folder of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
NEEDED = (
    "flash-linear-attention",
    "jaxtyping",
    "networkx",
    "peft",
    "psutil",
    "pydantic",
    "rich",
    "tensorboard",
    "typer",
    "wonderwords",
)
"""What the product imports for a build, a call and a step of training."""
TESTS = ("beartype", "hypothesis", "pytest", "pytest-randomly", "pytest-xdist")
EXPECTED = frozenset({
    "filelock", "fsspec", "hf-xet", "httpx", "huggingface-hub", "jinja2", "numpy", "packaging", "pyyaml", "regex", "safetensors",
    "sympy", "tokenizers", "torch", "tqdm", "transformers", "triton", "typing-extensions",
})  # fmt: skip
"""What is there: torch, Triton, transformers, and what they require."""
UNUSED = frozenset({"grpcio", "markdown", "pillow", "tensorboard-data-server", "werkzeug"})
"""What tensorboard requires for its server, and nothing here imports."""
MOST_BYTES = 40_000_000
MANYLINUX = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_24", "manylinux_2_17", "manylinux2014", "manylinux1")


def collect(folder: Path, python: str, machine: str) -> list[Path]:
    """Download all wheels. Return their paths."""
    waiting: list[str] = [canonicalize_name(name) for name in (*NEEDED, *TESTS)]
    pins = read_pins()
    environment = {"python_version": python, "python_full_version": f"{python}.0", "platform_machine": machine, "extra": ""}
    environment |= {"sys_platform": "linux", "platform_system": "Linux", "implementation_name": "cpython", "os_name": "posix"}
    wheels: dict[str, Path] = {}
    while waiting:
        name = waiting.pop(0)
        if name not in wheels and name not in EXPECTED | UNUSED:
            wheels[name] = download(folder, f"{name}=={pins[name]}" if name in pins else name, python, machine)
            waiting += list_required(wheels[name], environment)
    return [*wheels.values(), build_own(folder)]


def read_pins() -> dict[str, str]:
    """Return the versions of constraints.txt by package."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if "==" in line)
    return {canonicalize_name(name): version for name, version in pairs}


def list_required(wheel: Path, environment: dict[str, str]) -> Iterator[str]:
    """Yield the packages that a wheel requires without extras."""
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA") and name.count("/") == 1)
        metadata = HeaderParser().parsestr(archive.read(path).decode())
    for requirement in map(Requirement, metadata.get_all("Requires-Dist", [])):
        if requirement.marker is None or requirement.marker.evaluate(environment):
            yield canonicalize_name(requirement.name)


def download(folder: Path, requirement: str, python: str, machine: str) -> Path:
    """Download the wheel of one package without what it requires."""
    platforms = [part for name in MANYLINUX for part in ("--platform", f"{name}_{machine}")]
    where = ("--only-binary=:all:", "--implementation", "cp", "--python-version", python, *platforms)
    return run_pip(folder, "download", "--no-deps", *where, requirement)


def build_own(folder: Path) -> Path:
    """Build this project's wheel. Its code is imported from the working tree; its version and entry points from the wheel."""
    return run_pip(folder, "wheel", "--no-deps", str(ROOT))


def run_pip(folder: Path, command: str, *arguments: str) -> Path:
    """Run a command of pip that writes one wheel, and return the wheel's path."""
    into = folder / "new"
    target = "--dest" if command == "download" else "--wheel-dir"
    pip = (sys.executable, "-m", "pip", command, "--quiet", "--disable-pip-version-check", target, str(into))
    subprocess.run((*pip, *arguments), check=True)
    (wheel,) = into.glob("*.whl")
    wheel = wheel.rename(folder / wheel.name)
    into.rmdir()
    return wheel


def main(arguments: Sequence[str] | None = None) -> None:
    """Download, list and check the sum of the sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="for the wheels; must be empty or new")
    parser.add_argument("--python", default="3.12", help="version of Python on the machine")
    parser.add_argument("--machine", default="x86_64", help="its processor")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    if any(options.folder.iterdir()):
        parser.error(f"{options.folder} is not empty; name a new folder")
    wheels = collect(options.folder, options.python, options.machine)
    for wheel in sorted(wheels):
        print(f"{wheel.stat().st_size / 1e6:8.2f} MB  {wheel.name}")
    total = sum(wheel.stat().st_size for wheel in wheels)
    print(f"{total / 1e6:8.2f} MB  in {len(wheels)} wheels")
    if total > MOST_BYTES:
        sys.exit(f"The wheels have more than {MOST_BYTES / 1e6:.0f} MB. Remove packages from benchmarks/collect_wheels.py.")


if __name__ == "__main__":
    main()
