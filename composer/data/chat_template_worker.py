"""The program of the process that renders chat templates. It imports nothing of this project.

See ``composer/data/chat_templates.py``.

It reads requests from its standard input and writes an answer to each on its standard output. A request is a line with two sizes,
the template as JSON (null for that of the request before), and JSON: the messages, the starts of the conversation to render, and
the options for transformers' own ``render_jinja_template``. An answer is a line with its size, and JSON: the texts, each with the
spans of its answers, or the error.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

try:
    import resource
except ImportError:  # no Unix
    resource = None


def renderer() -> Any:
    """Return the function of transformers that renders. Its packages' ``__init__`` would need seconds and are skipped."""
    module_spec = find_spec("transformers")
    assert module_spec is not None
    folder = (module_spec.submodule_search_locations or [""])[0]
    for name, path in (("transformers", folder), ("transformers.utils", f"{folder}/utils")):
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__path__ = [path]
    return import_module("transformers.utils.chat_template_utils").render_jinja_template


def limit(which: str, maximum: int) -> None:
    """Lower a limit of this process, as far as the system has it."""
    if resource is None:
        return
    kind = getattr(resource, which)
    _, hard = resource.getrlimit(kind)
    try:
        resource.setrlimit(kind, (maximum if hard == resource.RLIM_INFINITY else min(maximum, hard), hard))
    except (OSError, ValueError):  # as macOS has it for memory
        return


def address_space() -> int:
    """Bytes of this process's address space; 0 if the system does not report them."""
    try:
        with open("/proc/self/statm", encoding="ascii") as stream:
            return int(stream.read().split()[0]) * resource.getpagesize() if resource else 0
    except OSError:
        return 0


def answer(render: Any, template: str, request: dict[str, Any], longest: int) -> dict[str, Any]:
    """Return the texts and their spans, or the error as text."""
    texts, remaining = [], longest
    try:
        for count, prompt in request["starts"]:
            options = {**request["options"], "add_generation_prompt": prompt}
            (text,), spans = render(conversations=[request["messages"][:count]], chat_template=template, **options)
            remaining -= len(text)
            if remaining < 0:
                return {"error": f"it writes {longest - remaining:,} characters; expected at most {longest:,}"}
            texts.append((text, spans[0] if spans else []))
    except MemoryError:
        return {"error": "it needs too much memory"}
    except RecursionError:
        return {"error": "it is nested too deep, or calls itself without end"}
    except Exception as error:  # templates are programs, which raise errors of any class
        return {"error": str(error)[:1000] or type(error).__name__}
    return {"texts": texts}


def main(seconds: int, memory: int, longest: int) -> None:
    """Serve requests until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the calling process
    render, template = renderer(), ""
    limit("RLIMIT_CORE", 0)
    limit("RLIMIT_AS", address_space() + memory)
    while sizes := sys.stdin.buffer.readline().split():
        program, request = (json.loads(sys.stdin.buffer.read(int(size))) for size in sizes)
        template = template if program is None else program
        limit("RLIMIT_CPU", int(time.process_time()) + 1 + seconds)
        content = json.dumps(answer(render, template, request, longest), ensure_ascii=False).encode("utf-8", "surrogatepass")
        sys.stdout.buffer.write(b"%d\n%b" % (len(content), content))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
