"""Names of files inside a model's folder, as records have them."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from converters.bounded import brief, is_name


def _inside(name: str) -> str:
    if not all(map(is_name, name.split("/"))):
        raise ValueError(f"no file of a folder can be called {brief(name)}")
    return name


FileName = Annotated[str, AfterValidator(_inside)]
"""A file of the folder, or of one inside it, such as ``adapter/adapter_model.safetensors``."""
