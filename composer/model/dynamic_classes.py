"""Classes that are made at first use, from one of this project's and one of a host's. Such a class is in no module by its name, so
a pickle stores how to make it again."""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from typing import Any


class MadeClass(type):
    """The metaclass of these classes. made_by: a function of a module and its arguments, which returns the class."""

    made_by: tuple[Callable[..., type], tuple[Any, ...]]


def make_class(by: Callable[..., type], host: Any, front: type, *behind: type, **attributes: Any) -> Any:
    """Return the class ``Composed…`` with the bases ``front`` and a host's class. by: the function that returns it again for
    ``host``."""
    bases = (front, *behind)
    return MadeClass(f"Composed{behind[0].__name__}", bases, {"__module__": by.__module__, "made_by": (by, (host,)), **attributes})


def _pickle(cls: MadeClass) -> str | tuple[Any, ...]:
    # A user's class that inherits from one of these is in its module by its name.
    return vars(cls).get("made_by", cls.__qualname__)


copyreg.pickle(MadeClass, _pickle)
