"""The file in a model's folder that states what the model needs, for places where this package is not installed.

transformers runs it with ``trust_remote_code=True`` alone. Without that, transformers names the argument to pass. Where the package
is installed and not imported, the file imports it, and the model loads.
"""

from __future__ import annotations

STUB_TEXT = '''"""Loads this model with the package attention-composer, which has its classes."""

NEEDS = (
    "This model needs the package attention-composer: run `pip install .` in its checkout and `import composer` before you "
    "load it, or have `compose export` write it as a folder that needs PyTorch and transformers alone."
)
try:
    import composer  # registers the classes with transformers
except ModuleNotFoundError as error:
    raise ImportError(NEEDS) from error
if not hasattr(composer, "load_spec"):
    raise ImportError(f"{NEEDS} The `composer` that is installed here is another package: {composer.__file__}.")

from transformers import AutoConfig


class Config:
    """The configuration that the package has for this model."""

    @staticmethod
    def register_for_auto_class(*_: str) -> None:
        """The package has registered its classes."""

    @staticmethod
    def from_pretrained(*arguments: str, **options: object) -> object:
        return AutoConfig.from_pretrained(*arguments, **options)
'''
