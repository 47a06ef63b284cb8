"""``build``: a model with the heads of a spec and the weights of a source, in memory and as a folder."""

from __future__ import annotations

from composer.building import BuildOptions, ModelOptions, run_build, run_build_in_memory
from composer.options import function_of

build = function_of(ModelOptions, run_build_in_memory, "build")
build_folder = function_of(BuildOptions, run_build, "build_folder")
