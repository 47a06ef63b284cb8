"""The laws for parts from outside, as tests. The plugin adds this file to a run with ``--composer-parts``."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial

import pytest

from blocks.external_parts import parts_of, register_parts
from blocks.part import Part
from blocks.registry import RegistrationError, kind_of
from composer.graph.composition import HeadSpec
from composer.laws import batch, bounds, definition, split
from composer.laws.cases import SHAPES, SMALL, coarse, heads_of, steady
from composer.laws.plugin import OPTION

SHAPE, PAIR = SMALL.shape(4), SMALL.shape(2)
SPLITS = {"1+69": (1,), "64+6": (64,), "uneven": (33, 34, 66), "one by one": split.ONE_BY_ONE}


def _laws() -> Iterator[tuple[str, Callable[[HeadSpec], None]]]:
    for name in SHAPES:
        yield f"the fast form is the definition, {name}", partial(_definition, name)
        yield f"the state has the declared size, {name}", partial(_size, name)
    yield "the gradients are those of the definition", definition.assert_same_gradients
    yield (
        "the gradients are those of the definition, short values",
        partial(definition.assert_same_gradients, shape_name="short values"),
    )
    yield "float32 is close to float64", lambda head: definition.assert_close_in_float32(steady(head))
    for name, bounds_of_calls in SPLITS.items():
        yield f"a text in calls is the whole, {name}", partial(_split, bounds_of_calls)
    yield "gradients of one token at a time are those of the whole", _split_gradients
    yield "documents are independent", lambda head: batch.assert_documents_apart(head, SHAPE, 75, (7, 8, 66), ((), (3, 7, 20, 67)))
    for backend in ("torch", "reference"):
        yield f"padding is not seen, {backend}", partial(_padding, backend)
    yield "rows are independent", lambda head: batch.assert_rows_apart(head, SHAPE)
    yield "logits of 50 remain in range", lambda head: bounds.assert_in_range(steady(head))
    yield "bfloat16 is close", lambda head: bounds.assert_close_in_bfloat16(steady(head))
    yield "131,072 tokens remain in range", lambda head: bounds.assert_long(coarse(steady(head)))
    yield "errors do not grow with the position", lambda head: bounds.assert_errors_do_not_grow(coarse(steady(head)), PAIR)
    yield "a text in pieces is the whole", split.assert_same_in_pieces
    yield "a text in pieces, with padding and documents", _pieces_of_documents
    yield (
        "the weights reproduce the output",
        lambda head: definition.assert_implied(head, SHAPE, definition.LENGTH, (0, 1, 7, 40, 69)),
    )


def _definition(shape: str, head: HeadSpec) -> None:
    definition.assert_same(head, shape, definition.LENGTH)


def _size(shape: str, head: HeadSpec) -> None:
    bounds.assert_size(head, SHAPES[shape], bounds.CALLS[shape])


def _padding(backend: str, head: HeadSpec) -> None:
    batch.assert_padding_unseen(head, SHAPE, (40, 0, 3, 17), backend)


def _split(calls: tuple[int, ...], head: HeadSpec) -> None:
    split.assert_split(head, SHAPE, split.LENGTH, calls)


def _split_gradients(head: HeadSpec) -> None:
    split.assert_same_gradients(head, SHAPE, 14, tuple(range(14)))


def _pieces_of_documents(head: HeadSpec) -> None:
    split.assert_same_in_pieces(steady(head), documents=True, in_place=True)


LAWS = dict(_laws())


@cache
def parts_under_test(references: tuple[str, ...]) -> tuple[type[Part], ...]:
    """Return the parts of the modules and files. Raises pytest's error of usage if they cannot be registered."""
    try:
        return parts_of(register_parts(references))
    except RegistrationError as error:
        raise pytest.UsageError(f"--composer-parts: {error}") from error


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parts = parts_under_test(tuple(metafunc.config.getoption(OPTION) or ()))
    heads = heads_of(parts)
    if "head" in metafunc.fixturenames:
        metafunc.parametrize("head", list(heads.values()), ids=list(heads))
        metafunc.parametrize("law", LAWS)
    if "kernel_case" in metafunc.fixturenames:
        cases = _kernel_cases(parts, heads)
        metafunc.parametrize("kernel_case", list(cases.values()), ids=list(cases))


def test_law(law: str, head: HeadSpec) -> None:
    LAWS[law](head)


def test_kernel(kernel_case: Callable[[], None]) -> None:
    """A form on a kernel is the definition, in Triton's interpreter."""
    kernel_case()


def _kernel_cases(parts: tuple[type[Part], ...], heads: Mapping[str, HeadSpec]) -> dict[str, Callable[[], None]]:
    """Return the cases of the forms on kernels that compute one of the parts; none where Triton is missing, or compiles for a
    GPU."""
    if importlib.util.find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") != "1":
        return {}
    from composer.laws.kernel_forms import assert_is_definition, cases_of, list_forms_in, runs_of

    kinds = {kind_of(part) for part in parts}
    every = tuple(dict.fromkeys(heads.values()))
    runs = {form: places for form, places in runs_of(every).items() if kinds & set(form.kinds)}

    def nothing_is_left_out() -> None:
        assert {form for form in list_forms_in(every) if kinds & set(form.kinds)} == set(runs), "a form runs in no head"

    cases: dict[str, Callable[[], None]] = {"each form runs in some head": nothing_is_left_out}
    for name, (form, tokens, place) in cases_of(runs).items():
        cases[name] = partial(assert_is_definition, runs[form][place], form, tokens, place)
    return cases
