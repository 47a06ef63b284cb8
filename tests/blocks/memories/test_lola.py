"""LoLA from chunk to chunk in one launch keeps what its definition keeps, and answers as it does, wherever the form fits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from blocks.flow import Tokens
from blocks.kernels import Refused
from blocks.legend import Shape
from blocks.memories import lola
from blocks.operation import Setting
from blocks.scores.base import order
from composer.graph.lowering import lower, lowered
from composer.graph.program import FallsBack
from tests.blocks.fused.heads import ALIKE, GROUPED, assert_defined
from tests.blocks.fused.kernels import choose
from tests.composer.graph.heads import graph_of
from tests.laws.cases import built, complete, inputs, run

WINDOW = {"kind": "window", "size": 4, "shape": "terraced", "weight": "learned"}
SPARSE = {"kind": "sparse", "size": 5, "weight": "same"}
LOLA: dict[str, Any] = {"feature_map": "hedgehog", "memory": [WINDOW, SPARSE, {"kind": "state"}]}
RELATIVE = {"kind": "sparse", "size": 3, "keep": "relative_recall", "weight": 0.2}
SAYS = "from chunk to chunk"
PARTS = dict.fromkeys(("window", "sparse", "state"), SAYS)
ON_GPU = Setting(device="cuda", dtype="bfloat16")


@pytest.mark.parametrize(
    ("head", "shape", "length", "bounds"),
    [
        (LOLA, GROUPED, 30, (3, 17, 18)),
        (
            {"feature_map": "elu", "conv": "causal", "memory": [WINDOW, RELATIVE, {"kind": "state", "weight": 0.4}]},
            ALIKE,
            26,
            (),
        ),
        ({**LOLA, "read": {"kind": "shared", "scale": "row_max"}}, GROUPED, 21, (13,)),
        (LOLA, GROUPED, 22, tuple(range(14, 22))),
    ],
    ids=["split", "relative, convolved, weights of its own", "row_max", "decode"],
)
def test_it_is_the_definition(head: dict[str, Any], shape: Shape, length: int, bounds: tuple[int, ...]) -> None:
    assert_defined(head, shape, length, parts=PARTS, bounds=bounds, gradients=False)


def test_rows_that_end_early_and_go_on_from_there() -> None:
    position = torch.arange(24).expand(2, -1)
    tokens = Tokens(position, None, position < torch.tensor([[24], [13]]))
    assert_defined(LOLA, GROUPED, 24, parts=PARTS, rows=2, tokens=tokens, gradients=False)


@pytest.mark.parametrize("there", [0, 3, 5, 12])
def test_of_equals_the_older_stay(there: int) -> None:
    """Scores that lie within their resolutions of the one in the last place, which a few pairs share."""
    generator = torch.Generator().manual_seed(there)
    score = torch.randint(0, 5, (20, 12), generator=generator) * 0.1
    resolution = torch.randint(0, 3, (20, 12), generator=generator) * 0.04
    missing = torch.rand(20, 12, generator=generator).argsort(1) >= there
    # What the bar's resolution is where several stand there, nobody says: one and the same.
    resolution[:, :] = resolution[:, :1]
    score = score.masked_fill(missing, -torch.inf)
    expected = order(score.T[None], resolution.T[None], 5)[0, :5].T.sort(dim=1).values
    kept = torch.full((20, 5), -1, dtype=torch.int32)
    choose[(20,)](score.masked_fill(missing, -1e38), resolution.masked_fill(missing, 0.0), kept, COUNT=12, S=5, EB=16)
    assert torch.equal(kept.long(), expected)


@pytest.mark.parametrize(
    ("head", "setting", "why"),
    [
        (LOLA, Setting(device="cuda", gradients=True), "no gradient"),
        (LOLA, Setting(device="cuda", documents=True), "one document a row"),
        ({**LOLA, "memory": [{**WINDOW, "shape": "sliding"}, SPARSE, "state"]}, ON_GPU, "moves on by chunks"),
        ({**LOLA, "memory": [WINDOW, {**SPARSE, "keep": "recent"}, "state"]}, ON_GPU, "scores by"),
        ({**LOLA, "memory": [WINDOW, SPARSE, {"kind": "state", "gate": "head"}]}, ON_GPU, "does not decay"),
        ({**LOLA, "memory": [WINDOW, {**SPARSE, "size": 600}, "state"]}, ON_GPU, "pairs compete"),
        ({**LOLA, "memory": [WINDOW, {**SPARSE, "size": 0}, "state"]}, ON_GPU, "has room"),
        ({**LOLA, "memory": [WINDOW, {**SPARSE, "position": "none"}, "state"]}, ON_GPU, "alike"),
        ({**LOLA, "feature_map": "exp"}, ON_GPU, "running maximum"),
    ],
)
def test_where_it_does_not_fit_it_says_so(head: dict[str, Any], setting: Setting, why: str) -> None:
    forms = {one.part: one.form for one in lowered(graph_of(head), "triton", setting)}
    assert not any(form.startswith(SAYS) for form in forms.values())
    (said,) = (step.why for step in lower(graph_of(head), "triton", setting).steps if step.covers[0].node.name == "sparse")
    assert why in said


def test_it_is_what_auto_takes_on_a_gpu_and_covers_the_read() -> None:
    (step,) = (step for step in lower(graph_of(LOLA), "auto", ON_GPU).steps if step.form.says.startswith(SAYS))
    assert step.names == ("window", "sparse", "state", "read")
    assert [one.names for one in step.instead] == [("window",), ("sparse", "state"), ("read",)]


class Refusing:
    """A kernel that is there, and computes nothing."""

    def missing(self) -> None:
        return None

    def __call__(self, *inputs: Any, **options: Any) -> None:
        raise Refused("of a test")


def test_where_the_kernel_refuses_the_forms_of_each_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, data = complete(LOLA), inputs(GROUPED, 1, 14).to(torch.float32)
    module = built(spec, GROUPED).float()
    with torch.no_grad():
        expected, held = run(module, data, backend="torch")
        monkeypatch.setattr(lola, "WALKED", Refusing())
        with pytest.warns(FallsBack, match="of a test"):
            found, kept = run(module, data, backend="triton")
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(kept, held)
