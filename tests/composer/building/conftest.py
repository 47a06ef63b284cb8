"""Sources to build from."""

from tests.composer.weights.conftest import compose, sharded, source, teacher

__all__ = ["compose", "sharded", "source", "teacher"]
