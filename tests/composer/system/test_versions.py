"""One command installs an extra, in the messages of all packages, which cannot share a constant."""

from __future__ import annotations

from blocks.kernels import EXTRA
from composer.system.versions import install_command
from converters.gguf import INSTALL


def test_every_package_names_the_same_command() -> None:
    assert (install_command("gpu"), install_command("gguf")) == (EXTRA, INSTALL)
