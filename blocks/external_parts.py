"""Registers parts from outside: of installed packages, and of modules and files that a user names.

A package names its module in its entry points:

    [project.entry-points."attention_composer.parts"]
    mypackage = "mypackage.parts"

Such modules are imported when the parts of a role are first needed. Anything else is imported only where a user names it. Nothing
that is read, such as a spec or a model's folder, causes an import.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points, packages_distributions, version
from pathlib import Path
from threading import Event
from types import ModuleType
from typing import TypeGuard

from blocks.part import Part
from blocks.registry import KIND, LOCK, Patterns, RegistrationError, Role, add_parts

GROUP = "attention_composer.parts"
"""The group of entry points whose modules are imported."""
FILES = "composer_parts"
"""The beginning of the names of modules that are made of files."""
LARGEST = 2**24
"""Bytes of a file of parts at most."""


@dataclass(frozen=True)
class PartOrigin:
    """The origin of a part of another package or file. package, version: of the installed distribution, if any. sha256: of the
    file, where no distribution has it. path: of that file here."""

    module: str
    package: str | None = None
    version: str | None = None
    sha256: str | None = None
    path: str | None = None

    def __str__(self) -> str:
        return f"{self.package} {self.version}" if self.package else self.path or self.module


_ORIGINS: dict[type[Part], PartOrigin] = {}
_NAMED: dict[str, None] = {}
"""The modules and files that users have named, in order."""
_BROKEN: dict[str, str] = {}
"""For each package whose entry point failed, the reason."""
_INSTALLED = Event()
"""Set once the modules of installed packages have been imported, or while they are."""


def register_installed() -> None:
    """Register the parts of installed packages, once. ``find_broken_packages`` has the reasons why some failed."""
    with LOCK:
        if _INSTALLED.is_set():
            return
        _INSTALLED.set()  # importing the modules may use roles
        for point in sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
            package = point.dist.name if point.dist is not None else point.name
            try:
                _register_module(_import(point.module), _origin_of_point(point))
            except RegistrationError as error:
                _BROKEN[package] = str(error)


def _origin_of_point(point: EntryPoint) -> PartOrigin:
    if point.dist is None:
        return PartOrigin(point.module)
    return PartOrigin(point.module, point.dist.name, point.dist.version)


def find_broken_packages() -> dict[str, str]:
    """For each installed package whose parts could not be registered, the reason."""
    register_installed()
    return dict(_BROKEN)


def list_named_parts() -> tuple[str, ...]:
    """Return the modules and files that users have named in this process, for processes that this one starts."""
    return tuple(_NAMED)


def register_parts(references: Iterable[str | os.PathLike[str]]) -> tuple[str, ...]:
    """Register the parts of modules and files. Return the references, with whole paths. Raises RegistrationError.

    A reference is a file if it ends in ``.py`` or has a path's separator.
    """
    full_names = []
    for reference in references:
        text = os.fspath(reference)
        is_file = text.endswith(".py") or os.sep in text or isinstance(reference, os.PathLike)
        name = str(Path(text).expanduser().absolute()) if is_file else text
        with LOCK:
            register_installed()
            if is_file:
                _register_file(Path(name), text)
            else:
                module = _import(name)
                _register_module(module, _origin_of_module(module))
            _NAMED[name] = None
        full_names.append(name)
    return tuple(full_names)


def _import(name: str) -> ModuleType:
    """Import a module by its name. Raises RegistrationError, with the line that failed."""
    if not all(word.isidentifier() for word in name.split(".")):
        raise RegistrationError(
            f"`{name}` is no name of a module; expected a module such as mypackage.parts, or a file such as parts.py"
        )
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise RegistrationError(
                f"there is no module `{name}` here. Install its package, or name a file, such as parts.py"
            ) from error
        raise RegistrationError(f"the module `{name}` cannot be imported: {_reason(error)}") from error


def _file_module(path: Path) -> str:
    """Return the name of the module that a file becomes, which is the same in every process."""
    word = path.stem if path.stem.isidentifier() else "file"
    return f"{FILES}_{word}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"


def _register_file(path: Path, shown: str) -> None:
    if not path.is_file():
        raise RegistrationError(f"{shown} is no file. Expected a Python file with parts, or the name of a module")
    try:
        with path.open("rb") as stream:
            source = stream.read(LARGEST + 1)
    except OSError as error:
        raise RegistrationError(f"{shown} cannot be read: {error.__class__.__name__}") from error
    if len(source) > LARGEST:
        raise RegistrationError(f"{shown} has more than {LARGEST:,} bytes, and is no file of parts")
    digest = hashlib.sha256(source).hexdigest()
    name = _file_module(path)
    before = sys.modules.get(name)
    if before is not None:
        if before.__dict__["__sha256__"] != digest:
            raise RegistrationError(f"{shown} has changed since its parts were registered. Restart Python to use the changed file")
        return
    module = ModuleType(name)
    module.__file__, module.__dict__["__sha256__"] = str(path), digest
    sys.modules[name] = module
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
        _register_module(module, PartOrigin(path.name, sha256=digest, path=str(path)))
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        problem = str(error) if isinstance(error, RegistrationError) else _reason(error)
        raise RegistrationError(f"the parts of {shown} cannot be registered: {problem}") from error


def _register_module(module: ModuleType, origin: PartOrigin) -> None:
    """Register the public parts and patterns of a module. Raises RegistrationError if it has none, or one is incomplete."""
    from blocks.catalogue import CATALOGUE, PATTERNS

    parts = [part for part in _public(module) if _is_new(part, CATALOGUE.values())]
    if not parts:
        raise RegistrationError(f"{origin} has no parts. Expected public classes that extend a part and have their own `kind`")
    add_parts(parts, CATALOGUE)
    _add_patterns(module, PATTERNS)
    for part in parts:
        _ORIGINS.setdefault(part, origin if origin.package or origin.sha256 else _origin_of_file(part))


def _add_patterns(module: ModuleType, patterns: Patterns) -> None:
    from blocks.pattern import Pattern

    module_patterns = [item for name, item in vars(module).items() if isinstance(item, Pattern) and not name.startswith("_")]
    registered_patterns = (*patterns.outside, *patterns.built_in)
    patterns.outside += tuple(item for item in module_patterns if not any(item is other for other in registered_patterns))


def _public(module: ModuleType) -> Iterator[type[Part]]:
    """Yield the classes of parts among a module's public names, each once. Classes without a kind are bases of parts, and no
    parts."""
    names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    items = dict.fromkeys(item for name in names if isinstance(item := getattr(module, name, None), type))
    yield from (item for item in items if issubclass(item, Part) and "kind" in item.model_fields)


def _is_new(part: type[Part], roles: Iterable[Role]) -> bool:
    """Whether a class is no part of this project."""
    return not any(part in role.built_in.values() for role in roles)


def _origin_of_module(module: ModuleType) -> PartOrigin:
    """Return the origin of a module that a user names."""
    top = module.__name__.partition(".")[0]
    packages = packages_distributions().get(top, ())
    if packages:
        return PartOrigin(module.__name__, packages[0], version(packages[0]))
    return PartOrigin(module.__name__)


def _origin_of_file(part: type[Part]) -> PartOrigin:
    """Return the origin of a part of a module without a distribution: the file that defines it."""
    path = getattr(sys.modules.get(part.__module__), "__file__", None)
    if path is None:
        return PartOrigin(part.__module__)
    return PartOrigin(part.__module__, sha256=hashlib.sha256(Path(path).read_bytes()).hexdigest(), path=path)


def _reason(error: BaseException) -> str:
    """Return the file and line of an error, its type and its message, on one line."""
    message = " ".join(str(error).split()) or "without a reason"
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}: {error.msg}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    here = [frame for frame in frames if frame.filename != __file__]
    place = f"{here[-1].filename}, line {here[-1].lineno}: " if here else ""
    return f"{place}{type(error).__name__}: {message}"


def origin_of(part: type[Part]) -> PartOrigin | None:
    """Return the origin of a part from outside; None for a part of this project."""
    return _ORIGINS.get(part)


def parts_of(references: Iterable[str]) -> tuple[type[Part], ...]:
    """Return the parts of modules and files that have been registered. references: as ``register_parts`` returns them."""
    parts: list[type[Part]] = []
    for reference in references:
        module = sys.modules[_file_module(Path(reference)) if reference.endswith(".py") else reference]
        parts += (part for part in _public(module) if part in _ORIGINS)
    return tuple(parts)


def folders() -> tuple[str, ...]:
    """Return the folders and files that parts from outside are in."""
    modules = (sys.modules.get(part.__module__.partition(".")[0]) for part in _ORIGINS)
    paths = [str(getattr(module, "__file__", None) or "") for module in modules]
    return tuple(dict.fromkeys(path.removesuffix("__init__.py") for path in paths if path))


def is_outside(kind: object) -> TypeGuard[str]:
    """Whether a word could be the kind of a part from outside."""
    return isinstance(kind, str) and KIND.match(kind) is not None


def remedy(kind: str) -> str:
    """What to do where a part from outside is not registered, as a sentence."""
    package = kind.partition(".")[0]
    failed = find_broken_packages()
    near = [name for name in failed if name.replace("-", "_") == package]
    if reasons := [
        f"The package {name} is installed, and its parts could not be registered: {failed[name]}." for name in near or failed
    ]:
        return " ".join(reasons)
    return f"Install the package that has it, probably {package}, or name its module or its file with --parts"
