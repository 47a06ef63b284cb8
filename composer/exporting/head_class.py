"""One class of a file: the heads of a layer that are composed alike."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from keyword import iskeyword
from typing import Any

from blocks.legend import Shape
from blocks.part import Fresh
from composer.errors import ExportError
from composer.exporting.folding import ArgumentFact, Known, NotNone
from composer.exporting.functions import Functions
from composer.exporting.heads import ONE_TOKEN, SIZES, Method, parameters_of, program_of, record
from composer.exporting.lines import lines_of, needed
from composer.exporting.recording import Recorded
from composer.exporting.template import ONE_BY_ONE
from composer.exporting.wrapping import wrapped
from composer.graph.composition import HeadSpec
from composer.graph.listing import listing, turns
from composer.graph.lowering import compiled

INPUTS = ("hidden", "query", "key", "value", "sinks", "position", "valid", "state", "rotation", "cosine", "sine", "dtype", "device")
SHAPES = {
    "hidden": "B T C",
    "query": "B T H D",
    "key": "B T K D",
    "value": "B T K D",
    "sinks": "H",
    "position": "B T",
    "valid": "B T",
}
OWN_NAMES = frozenset({"heads", "key_heads", "slots", "rotary", "step", "mix", "mix_step", "empty_state"})
"""Names that a head of a file has itself."""
EMPTY_DTYPES = {"pairs": "dtype", "state": "torch.float32", "int64": "torch.int64"}


class HeadClass:
    """One class of the file: heads of one composition and shape."""

    def __init__(self, name: str, head: HeadSpec, shape: Shape, place: tuple[int, int], turns: bool) -> None:
        self.name, self.head, self.shape, self.place, self.turns = name, head, shape, place, turns
        self.graph = compiled(head, shape).graph
        self.mixes = bool(self.graph.before_projections())
        for part in self.parameters:
            if iskeyword(part) or part in OWN_NAMES:
                raise ExportError(f"a memory called `{part}` cannot be an attribute of a head in the file; set another `name`")
        self.methods: dict[tuple[bool, bool], Method] = {}
        self.one_by_one: str | None = None
        """Why `forward` takes one token after the other; None where it takes all at once."""
        for mixing in (False, True)[: 1 + self.mixes]:
            self.methods[mixing, True] = self._recorded(mixing, one_token=True)
            try:
                self.methods[mixing, False] = self._recorded(mixing, one_token=False)
            except ExportError as error:
                if mixing or any(0 in slot.shape for slot in self.graph.slots.values()):
                    raise
                self.one_by_one = str(error)

    def _recorded(self, mixing: bool, one_token: bool) -> Method:
        """A program, recorded with several numbers of rows and tokens. Raises ExportError where they do not give the same lines."""
        found: list[tuple[Method, list[str]]] = []
        for sizes in ONE_TOKEN if one_token else SIZES:
            method = record(self.head, self.shape, self.place, one_token=one_token, turns=self.turns, sizes=sizes, mixing=mixing)
            found.append((method, [line for _, line in lines_of(method, _plain_call, frozenset())]))
            first, now = found[0][1], found[-1][1]
            if first != now:
                one, two = next(pair for pair in zip([*first, ""], [*now, ""], strict=False) if pair[0] != pair[1])
                raise ExportError(f"what runs depends on the numbers of rows and tokens: `{one}` or `{two}`")
        return found[0][0]

    def calls(self) -> Iterator[tuple[str, Mapping[str, ArgumentFact]]]:
        """The calls of functions of ``blocks`` in both methods."""
        for method in self.methods.values():
            for call in needed(method):
                if call.kind == "own":
                    yield call.name, {name: _fact(value) for name, value in call.options.items()}

    @cached_property
    def parameters(self) -> dict[str, dict[str, Fresh]]:
        """Its parameters, by part and name."""
        return {node.module: fresh for node in self.graph.parts if (fresh := parameters_of(node))}

    @property
    def precise(self) -> Iterator[str]:
        """The parameters that are never narrower than float32."""
        for part, parameters in self.parameters.items():
            yield from (f"{part}.{name}" for name, fresh in parameters.items() if fresh.precise)

    def serves(self, place: tuple[int, int]) -> bool:
        """Whether it computes what heads in this layer, and at this place there, compute."""
        return place == self.place or not any(method.asks_place for method in self.methods.values())

    @property
    def rotates(self) -> bool:
        """Whether it rotates queries or keys as the model does."""
        return any(call.name == "rotated" for method in self.methods.values() for call in needed(method))

    @property
    def asks_rotary(self) -> bool:
        """Whether keys are rotated at other positions than those of the call's tokens."""
        return any(call.name == "self.rotary" for method in self.methods.values() for call in needed(method))

    def text(self, functions: Functions, config: str, rotary: str | None) -> str:
        """The class. config, rotary: names of the model's own classes."""
        if self.asks_rotary and rotary is None:
            raise ExportError(
                "keys are rotated at other positions than those of the call's tokens, and the model's layers rotate differently"
            )
        lines = [f"class {self.name}(nn.Module):", '    """All heads of a layer that are composed alike:', ""]
        lines += [f"        {line}" for line in _program_of(self.head, self.shape)]
        lines += [
            "",
            "    hidden B T C, query B T H D, key and value B T K D, position B T, valid B T; the output is B T H D.",
            '    """',
            "",
        ]
        lines += [f"    heads, key_heads = {self.shape.heads}, {self.shape.key_heads}"]
        slots = "".join(f'"{slot}", ' for slot in self.graph.slots).rstrip()
        lines += [*wrapped(f"    slots = ({slots})"), ""]
        lines += [f"    def __init__(self, config: {config}) -> None:", "        super().__init__()"]
        if self.asks_rotary:
            lines += [f"        self.rotary = {rotary}(config)"]
        for part, parameters in self.parameters.items():
            inside = ", ".join(f"{name}={tuple(fresh.shape)}" for name, fresh in parameters.items())
            lines += wrapped(f"        self.{part} = Parameters({inside})")
        for mixing in (True, False) if self.mixes else (False,):
            for one_token in (False, True):
                lines += ["", *self._method(functions, mixing, one_token)]
        lines += ["", *self._empty_state()]
        return "\n".join(line.rstrip() for line in lines)

    def _method(self, functions: Functions, mixing: bool, one_token: bool) -> Iterator[str]:
        loops = (mixing, one_token) not in self.methods
        body = ONE_BY_ONE.splitlines() if loops else self._body(functions, self.methods[mixing, one_token])
        name = {(False, False): "forward", (False, True): "step", (True, False): "mix", (True, True): "mix_step"}[mixing, one_token]
        left_out = {*(["query", "key", "value", "sinks"] if mixing else []), *([] if self.shape.sinks else ["sinks"])}
        left_out |= {"valid"} if one_token else set()
        inputs = [f"{name}: Tensor" for name in SHAPES if name not in left_out]
        inputs += ["state: State", *([] if mixing else ["rotation: Rotation"])]
        yield from wrapped(f"    def {name}(self, {', '.join(inputs)}) -> tuple[Tensor, State]:")
        tokens = "One token" if one_token else "Any number of tokens"
        what = "What queries and keys are projected from: " if mixing else ""
        tokens += " behind those that the state has seen"
        yield f'        """{what}{tokens.lower() if what else tokens}{", one after the other" if loops else ""}."""'
        whole = "\n".join(body)
        if re.search(r"\b(cosine|sine)\b", whole) and not loops:
            yield "        cosine, sine = rotation"
        like = "hidden" if mixing else "query"
        asked = [name for name in ("dtype", "device") if re.search(rf"(?<![\w.]){name}\b(?!=)", whole)]
        if asked:
            yield f"        {', '.join(asked)} = {', '.join(f'{like}.{name}' for name in asked)}"
        yield from body

    def _body(self, functions: Functions, method: Method) -> list[str]:
        taken = frozenset({*functions.names.values(), *INPUTS[7:], "rotated"})
        rows, last = list[str](), -1
        for step, line in lines_of(method, functions.call, taken):
            if step != last and step < len(method.titles):
                rows.append(f"        # {method.titles[step]}"[:120])
                last = step
            rows += wrapped(f"        {line}")
        return rows

    def _empty_state(self) -> Iterator[str]:
        yield "    def empty_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:"
        yield '        """Before the first token."""'
        yield "        return {"
        for name, slot in self.graph.slots.items():
            empty = "-math.inf" if slot.empty == -float("inf") else repr(int(slot.empty) if slot.dtype == "int64" else slot.empty)
            sizes = ", ".join(str(size) for size in slot.shape)
            yield f'            "{name}": torch.full((batch, {sizes}), {empty}, dtype={EMPTY_DTYPES[slot.dtype]}, device=device),'
        yield "        }"


def _plain_call(name: str, given: Mapping[str, Any], text: Callable[[Any], str]) -> str:
    return f"{name.rpartition(':')[2]}({', '.join(f'{one}={text(value)}' for one, value in given.items())})"


def _fact(value: Any) -> ArgumentFact:
    if isinstance(value, Recorded):
        return NotNone(value.rank)
    if value is None or isinstance(value, bool | int | float | str):
        return Known(value)
    return NotNone()


def _program_of(head: HeadSpec, shape: Shape) -> list[str]:
    program = program_of(compiled(head, shape), one_token=False)
    return [re.sub(r"\s+#.*$", "", line) if not line.startswith("#") else line for line in (*turns(program), *listing(program))]
