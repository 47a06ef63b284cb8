"""One class of a file: the heads of a layer that are composed alike."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from keyword import iskeyword
from typing import Any

from blocks.legend import Shape
from blocks.part import Fresh
from composer.errors import ExportError
from composer.exporting.call_recording import Recorded
from composer.exporting.folding import ArgumentFact, Known, NotNone
from composer.exporting.functions import Functions
from composer.exporting.head_recording import ONE_TOKEN, PIECE, PIECES, SIZES, Method, parameters_of, program_of, record
from composer.exporting.lines import find_needed, lines_of, plain
from composer.exporting.named_sizes import sizes_of, with_named_sizes
from composer.exporting.template import IN_PIECES, ONE_BY_ONE
from composer.exporting.wrapping import WIDTH, wrap
from composer.graph.composition import HeadSpec
from composer.graph.lowering import compile_head
from composer.graph.source import rotations

INPUTS = (
    *("hidden", "query", "key", "value", "sinks", "position", "valid"),
    *("state", "rotation", "cosine", "sine", "dtype", "device", "precise"),
)
SHAPES = {
    "hidden": "B T C",
    "query": "B T H D",
    "key": "B T K D",
    "value": "B T K D",
    "sinks": "H",
    "position": "B T",
    "valid": "B T",
}
OWN_NAMES = frozenset({"heads", "key_heads", "rotary", "step", "piece", "mix", "mix_step", "empty_state"})
"""Names that a head of a file has itself."""
LONGEST_PIECE = 150
"""The most lines of a method for a fixed number of tokens, in which loops are written out."""
PRECISE = "torch.promote_types({}, torch.float32)"
"""The dtype of sums."""


class HeadClass:
    """One class of the file: heads of one composition and shape."""

    def __init__(self, name: str, head: HeadSpec, shape: Shape, place: tuple[int, int], model_rotates: bool) -> None:
        self.name, self.head, self.shape, self.place, self.model_rotates = name, head, shape, place, model_rotates
        self.recorded = with_named_sizes(head, shape)
        self.graph = compile_head(self.recorded, shape).graph
        self.mixes = bool(self.graph.before_projections())
        for part in self.parameters:
            if iskeyword(part) or part in OWN_NAMES:
                raise ExportError(f"a memory called `{part}` cannot be an attribute of a head in the file; set another `name`")
        self.methods: dict[tuple[bool, bool], Method] = {}
        self.one_by_one: str | None = None
        """Why `forward` takes one token after the other; None where it takes many at once."""
        self.takes_pieces = False
        """True if `forward` calls `piece`, which takes a fixed number of tokens, for one piece after the other."""
        for mixing in (False, True)[: 1 + self.mixes]:
            try:
                self.methods[mixing, False] = self._record_program(mixing, SIZES)
            except ExportError as error:
                if mixing or any(0 in slot.shape for slot in self.graph.slots.values()):
                    raise
                self._record_piece(str(error))
        self.methods |= {(mixing, True): self._record_program(mixing, ONE_TOKEN) for mixing in (False, True)[: 1 + self.mixes]}

    def _record_piece(self, reason: str) -> None:
        """Record the program for a fixed number of tokens, unless that is long. reason: why it cannot be for any number.

        Loops and sizes of tensors are numbers there, in which the sizes of memories cannot be told apart, so these have no names.
        """
        self.recorded = self.head
        self.graph = compile_head(self.head, self.shape).graph
        try:
            piece = self._record_program(False, PIECES)
        except ExportError as error:
            self.one_by_one = f"{reason}; of {PIECE} tokens: {error}"
            return
        lines = len(lines_of(piece, _plain_call, frozenset()))
        if lines > LONGEST_PIECE:
            self.one_by_one = f"{reason}; of {PIECE} tokens, it has {lines} lines"
            return
        self.methods[False, False], self.takes_pieces = piece, True

    def _record_program(self, mixing: bool, sizes: tuple[tuple[int, int], ...]) -> Method:
        """Record a program with several numbers of rows and tokens. Raises ExportError if their lines differ."""
        methods: list[tuple[Method, list[str]]] = []
        for size in sizes:
            method = record(
                self.recorded,
                self.shape,
                self.place,
                one_token=sizes == ONE_TOKEN,
                model_rotates=self.model_rotates,
                sizes=size,
                mixing=mixing,
                is_fixed=sizes == PIECES,
                in_place=sizes == ONE_TOKEN and self.one_by_one is None,
            )
            methods.append((method, [line for _, line in lines_of(method, _plain_call, frozenset())]))
            first, last = methods[0][1], methods[-1][1]
            if first != last:
                pairs = zip([*first, ""], [*last, ""], strict=False)
                before, after = next(pair for pair in pairs if pair[0] != pair[1])
                raise ExportError(f"what runs depends on the numbers of rows and tokens: `{before}` or `{after}`")
        return methods[0][0]

    def calls(self) -> Iterator[tuple[str, Mapping[str, ArgumentFact]]]:
        """Yield the calls of functions of ``blocks`` in all methods."""
        for method in self.methods.values():
            for call in find_needed(method):
                if call.kind == "own":
                    yield call.name, {name: _fact(value) for name, value in call.options.items()}

    def kernels(self) -> Iterator[str]:
        """Yield the operations of fla that the methods call, as ``module:name``."""
        for method in self.methods.values():
            yield from (call.name for call in find_needed(method) if call.kind == "kernel")

    def fields(self) -> Iterator[str]:
        """Yield the fields of results that the methods read."""
        for method in self.methods.values():
            yield from (call.name.removeprefix(".") for call in find_needed(method) if call.kind == "field")

    @cached_property
    def parameters(self) -> dict[str, dict[str, Fresh]]:
        """Its parameters, by part and name."""
        return {node.module: fresh for node in self.graph.parts if (fresh := parameters_of(node))}

    @property
    def precise(self) -> Iterator[str]:
        """Yield the parameters that are never narrower than float32."""
        for part, parameters in self.parameters.items():
            yield from (f"{part}.{name}" for name, fresh in parameters.items() if fresh.precise)

    def serves(self, place: tuple[int, int]) -> bool:
        """Whether this class also computes the heads at another place: a layer, and the first of its heads there."""
        return place == self.place or not any(method.asks_place for method in self.methods.values())

    @property
    def rotates(self) -> bool:
        """Whether it rotates queries or keys as the model does."""
        return any(call.name == "rotated" for method in self.methods.values() for call in find_needed(method))

    @property
    def asks_rotary(self) -> bool:
        """Whether keys are rotated at other positions than those of the call's tokens."""
        return any(call.name == "self.rotary" for method in self.methods.values() for call in find_needed(method))

    def text(self, functions: Functions, config: str, rotary: str | None, *, is_one_of_several: bool = False) -> str:
        """Return the class as text.

        config, rotary: names of the model's own classes. is_one_of_several: a layer has further groups of heads.
        """
        if self.asks_rotary and rotary is None:
            raise ExportError(
                "keys are rotated at other positions than those of the call's tokens, and the model's layers rotate differently"
            )
        lines = [f"class {self.name}(nn.Module):"]
        heads = f"{self.shape.heads} query heads and {self.shape.key_heads} key heads of a layer"
        lines += [f'    """{heads}. {_rotations(self.head, self.shape)}']
        lines += [
            "    hidden B T C, query B T H D, key and value B T K D, position B T, valid B T; the output is B T H D.",
            "    Padding, where `valid` is False, must leave the state unchanged: a decay is 0 there, and pairs are absent.",
            *(["    Pair t of those that a memory evicts is evicted at token t."] if len(self.head.memory) > 1 else []),
        ]
        lines[-1] += '"""'
        lines += [""]
        lines += [f"    heads, key_heads = {self.shape.heads}, {self.shape.key_heads}", ""] if is_one_of_several else []
        start = len(lines)
        lines += [f"    def __init__(self, config: {config}) -> None:", "        super().__init__()"]
        if self.asks_rotary:
            lines += [f"        self.rotary = {rotary}(config)"]
        for part, parameters in self.parameters.items():
            sizes = {name: ", ".join(plain(str(size)) for size in fresh.shape) for name, fresh in parameters.items()}
            inside = ", ".join(f"{name}=torch.empty({size})" for name, size in sizes.items())
            *rows, last = wrap(f"        self.{part} = PartParameters({inside})")
            comment = f"# initially {_starts(parameters)}"
            is_short = len(f"{last}  {comment}") <= WIDTH
            lines += [*rows, f"{last}  {comment}"] if is_short else [f"        {comment}", *rows, last]
        for mixing in (True, False) if self.mixes else (False,):
            if self.takes_pieces and not mixing:
                lines += ["", *self._forward_in_pieces()]
            for one_token in (False, True):
                lines += ["", *self._method(functions, mixing, one_token)]
        lines += ["", *self._empty_state()]
        used = {
            name: size for name, size in sizes_of(self.head, self.shape).items() if any(f"self.{name}" in line for line in lines)
        }
        lines[start:start] = [*(f"    {name} = {size}" for name, size in used.items()), *([""] if used else [])]
        return "\n".join(line.rstrip() for line in lines)

    def _forward_in_pieces(self) -> Iterator[str]:
        yield from self._signature("forward", False, False)
        yield f'        """Any number of tokens after those already in the state, {PIECE} at a time."""'
        yield from IN_PIECES.substitute(piece=PIECE, sinks=", sinks" if self.shape.sinks else "").splitlines()

    def _signature(self, name: str, mixing: bool, one_token: bool) -> list[str]:
        left_out = {*(["query", "key", "value", "sinks"] if mixing else []), *([] if self.shape.sinks else ["sinks"])}
        left_out |= {"valid"} if one_token else set()
        inputs = [f"{name}: Tensor" for name in SHAPES if name not in left_out]
        inputs += ["state: State", *([] if mixing else ["rotation: Rotation"])]
        return wrap(f"    def {name}(self, {', '.join(inputs)}) -> tuple[Tensor, State]:")

    def _method(self, functions: Functions, mixing: bool, one_token: bool) -> Iterator[str]:
        loops = (mixing, one_token) not in self.methods
        sinks = ", sinks" if self.shape.sinks else ""
        body = ONE_BY_ONE.substitute(sinks=sinks).splitlines() if loops else self._body(functions, self.methods[mixing, one_token])
        many = "piece" if self.takes_pieces else "forward"
        name = {(False, False): many, (False, True): "step", (True, False): "mix", (True, True): "mix_step"}[mixing, one_token]
        yield from self._signature(name, mixing, one_token)
        tokens = "One token" if one_token else f"{PIECE} tokens" if name == "piece" else "Any number of tokens"
        subject = "What queries and keys are projected from: " if mixing else ""
        tokens += " after those already in the state"
        yield f'        """{subject}{tokens.lower() if subject else tokens}{", one after the other" if loops else ""}."""'
        text = "\n".join(body)
        if re.search(r"\b(cosine|sine)\b", text) and not loops:
            yield "        cosine, sine = rotation"
        like = "hidden" if mixing else "query"
        sources = {"dtype": f"{like}.dtype", "device": f"{like}.device", "precise": PRECISE.format(f"{like}.dtype")}
        requested = [name for name in sources if re.search(rf"(?<![\w.]){name}\b(?!=)", text)]
        if requested:
            yield f"        {', '.join(requested)} = {', '.join(sources[name] for name in requested)}"
        yield from body

    def _body(self, functions: Functions, method: Method) -> list[str]:
        reserved = frozenset({*functions.names.values(), *INPUTS[7:], "rotated"})
        rows, last = list[str](), -1
        for step, line in lines_of(method, functions.call, reserved):
            if step != last and step < len(method.titles):
                rows.append(f"        # {method.titles[step]}"[:120])
                last = step
            rows += wrap(f"        {line}")
        return rows

    def _empty_state(self) -> Iterator[str]:
        yield "    def empty_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:"
        yield '        """The state before the first token."""'
        if self.recorded is self.head and sizes_of(self.head, self.shape):
            yield "        # Sizes of memories are in the methods, too. For others, export a model that was built with them."
        rows = list(self._empty_tensors(PRECISE.format("dtype")))
        if any(len(row) > WIDTH for row in rows):
            yield f"        precise = {PRECISE.format('dtype')}"
            rows = list(self._empty_tensors("precise"))
        yield from ("        return {", *rows, "        }")

    def _empty_tensors(self, precise: str) -> Iterator[str]:
        """precise: the dtype of sums as text."""
        for name, slot in self.graph.slots.items():
            sizes = ", ".join(["batch", *(plain(str(size)) for size in slot.shape)])
            call = f"torch.full(({sizes}), {'-math.inf' if slot.empty == -math.inf else slot.empty}"
            call = call if slot.empty else f"torch.zeros({sizes}"
            dtype = {"pairs": "dtype", "state": precise, "int64": "torch.int64"}[slot.dtype]
            yield f'            "{name}": {call}, dtype={dtype}, device=device),'


def _plain_call(name: str, supplied: Mapping[str, Any], text: Callable[[Any], str]) -> str:
    return f"{name.rpartition(':')[2]}({', '.join(f'{item}={text(value)}' for item, value in supplied.items())})"


def _fact(value: Any) -> ArgumentFact:
    if isinstance(value, Recorded):
        return NotNone(value.rank)
    if value is None or isinstance(value, bool | int | float | str):
        return Known(value)
    return NotNone()


def _starts(parameters: Mapping[str, Fresh]) -> str:
    """Return the initial values of a part's parameters, in words."""
    names: dict[str, list[str]] = {}
    for name, fresh in parameters.items():
        names.setdefault(getattr(fresh.fill, "description", "numbers of its own"), []).append(name)
    return "; ".join(f"{', '.join(same)}: {description}" for description, same in names.items())


def _rotations(head: HeadSpec, shape: Shape) -> str:
    """Return how queries and keys are rotated, in words."""
    return " ".join(line.lstrip("# ") for line in rotations(program_of(compile_head(head, shape), one_token=False).steps))
