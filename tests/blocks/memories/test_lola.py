"""LoLA's fused kernel keeps the same pairs and returns the same outputs as the definition."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from blocks.flow import Tokens
from blocks.kernels import Refused
from blocks.legend import Shape
from blocks.memories import lola, sparse
from blocks.operation import Setting
from blocks.scores.base import Contenders, Score, pairs_to_evict, places
from blocks.scores.self_recall import SelfRecall
from blocks.scores.squared_error import SquaredError
from composer.graph.composition import HeadSpec
from composer.graph.lowering import list_forms, lower
from composer.graph.wiring import build_graph
from composer.system.notices import FallsBack
from tests.blocks.fused.heads import ALIKE, GROUPED, assert_close, assert_defined
from tests.blocks.fused.kernels import choose
from tests.composer.graph.heads import graph_of
from tests.interpreter import nothing_refused
from tests.laws.cases import build_head, complete, inputs, run
from tests.laws.test_ties import strictly

WINDOW = {"kind": "window", "size": 4, "shape": "terraced", "weight": "learned"}
SPARSE = {"kind": "sparse", "size": 5, "weight": "same"}
LOLA: dict[str, Any] = {"feature_map": "hedgehog", "memory": [WINDOW, SPARSE, {"kind": "state"}]}
RELATIVE = {"kind": "sparse", "size": 3, "keep": "relative_recall", "weight": 0.2}
SAYS = "from chunk to chunk"
CHANNEL = {"kind": "channel", "rank": 2}
PARTS = dict.fromkeys(("window", "sparse", "state"), SAYS)
ON_GPU = Setting(device="cuda", dtype="bfloat16")


def packed() -> Tokens:
    """Return a row of four documents. The first document continues from an earlier call."""
    lengths = [15, 1, 4, 19]
    position = torch.cat([torch.arange(length) for length in lengths])
    return Tokens(position[None], torch.repeat_interleave(torch.arange(4), torch.tensor(lengths))[None])


def keeping(score: str, gate: Any = "none", **options: Any) -> dict[str, Any]:
    """Return LoLA with another score and a gate."""
    return {**LOLA, **options, "memory": [WINDOW, {**SPARSE, "keep": score}, {"kind": "state", "gate": gate}]}


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
        (keeping("squared_error", CHANNEL, conv="causal"), GROUPED, 23, (3, 17, 18)),
        (keeping("overestimate", "head", feature_map="exp"), ALIKE, 22, (13, *range(19, 22))),
        (keeping("self_recall", "head", feature_map="exp"), GROUPED, 23, (3, 17, *range(20, 23))),
    ],
    ids=[
        "split",
        "relative, convolved, weights of its own",
        "row_max",
        "decode",
        "decay by the feature, errors of the window",
        "decay by the head, errors of the window, decode",
        "exponential, decay by the head",
    ],
)
def test_the_kernel_matches_the_definition(head: dict[str, Any], shape: Shape, length: int, bounds: tuple[int, ...]) -> None:
    assert_defined(head, shape, length, parts=PARTS, bounds=bounds, gradients=False)


@pytest.mark.parametrize(
    ("head", "bounds"),
    [
        (LOLA, ()),
        (keeping("absolute_error", CHANNEL), (13,)),
        (keeping("relative_recall", CHANNEL, feature_map="exp"), (13, 30)),
        (keeping("recent", "head"), (13,)),
        (keeping("random"), (13, 36)),
    ],
    ids=["lola", "errors, decay by the feature", "exponential, decay by the feature", "recent, decay by the head", "random"],
)
def test_documents_do_not_see_each_other(head: dict[str, Any], bounds: tuple[int, ...]) -> None:
    assert_defined(head, GROUPED, 39, parts=PARTS, bounds=bounds, tokens=packed(), gradients=False)


def test_rows_that_end_early_match_the_definition() -> None:
    position = torch.arange(24).expand(2, -1)
    tokens = Tokens(position, None, position < torch.tensor([[24], [13]]))
    assert_defined(keeping("self_recall", CHANNEL), GROUPED, 24, parts=PARTS, rows=2, tokens=tokens, gradients=False)


def test_rows_of_documents_that_end_early_match_the_definition() -> None:
    """The second row has one document less, and only padding in the second call."""
    row = packed()
    assert row.segment is not None
    position, segment = row.position.expand(2, -1), row.segment.expand(2, -1)
    valid = torch.arange(39) < torch.tensor([[37], [19]])
    tokens = Tokens(position, segment, valid)
    assert_defined(keeping("squared_error", "head"), GROUPED, 39, parts=PARTS, rows=2, bounds=(22,), tokens=tokens, gradients=False)


def kept_by(keep: Score) -> HeadSpec:
    """Return LoLA with a score object instead of a score from the catalogue."""
    spec = complete(LOLA)
    window, sparse, state = spec.memory
    return spec.model_copy(update={"memory": (window, sparse.model_copy(update={"keep": keep}), state)})


def test_scores_of_the_pair_alone_are_supported() -> None:
    """The kernel accepts the example score of CONTRIBUTING.md and its resolution."""

    class ValueNorm(Score):
        equation: ClassVar[str] = "‖v‖"
        source: ClassVar[str] = "this test"

        def score(self, pairs: Contenders) -> Tensor:
            return torch.linalg.vector_norm(pairs.value, dim=-1)

    spec, data = kept_by(ValueNorm()), inputs(GROUPED, 1, 23)
    (form,) = (
        lowered_part.form
        for lowered_part in list_forms(build_graph(spec, GROUPED), "triton", Setting())
        if lowered_part.part == "sparse"
    )
    assert form.startswith(SAYS)
    with torch.no_grad(), nothing_refused():
        expected, held = run(build_head(spec, GROUPED).double(), data, backend="reference")
        actual, kept = run(build_head(spec, GROUPED).float(), data.to(torch.float32), backend="triton")
    assert_close(actual, expected)
    assert_close(kept["sparse.value"], held["sparse.value"])


def test_kept_pairs_equal_those_of_a_strict_float64_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the choices is between scores that differ by less than one part in 512."""
    spec, data = complete(LOLA), inputs(GROUPED, 1, 25, seed=19).to(torch.float32)
    with torch.no_grad(), nothing_refused():
        _, chosen = run(build_head(spec, GROUPED).float(), data, backend="triton")
        monkeypatch.setattr(sparse, "pairs_to_evict", strictly)
        _, wanted = run(build_head(spec, GROUPED).double(), data.to(torch.float64), backend="reference")
    assert torch.equal(chosen["sparse.position"], wanted["sparse.position"])


@pytest.mark.parametrize("earlier", [0, 3, 5, 12])
def test_older_pairs_are_kept_on_ties(earlier: int) -> None:
    """Of scores within their resolutions of the last kept score, the older pairs stay."""
    generator = torch.Generator().manual_seed(earlier)
    score = torch.randint(0, 5, (20, 12), generator=generator) * 0.1
    resolution = torch.randint(0, 3, (20, 12), generator=generator) * 0.04
    missing = torch.rand(20, 12, generator=generator).argsort(1) >= earlier
    # What the bar's resolution is where several stand there, nobody says: one and the same.
    resolution[:, :] = resolution[:, :1]
    score = score.masked_fill(missing, -torch.inf)
    gone = torch.zeros(1, 12, 20, dtype=torch.bool)
    evicted = pairs_to_evict(score.T[None], resolution.T[None], ~missing.T[None], gone, 7)[0].T
    expected = torch.zeros(20, 12, dtype=torch.int8).scatter(1, evicted, 1).argsort(dim=1, stable=True)[:, :5]
    kept = torch.full((20, 5), -1, dtype=torch.int32)
    choose[(20,)](score.masked_fill(missing, -1e38), resolution.masked_fill(missing, 0.0), kept, COUNT=12, S=5, EB=16)
    assert torch.equal(kept.long(), expected)


@pytest.mark.parametrize(
    ("head", "setting", "why"),
    [
        (LOLA, Setting(device="cuda", gradients=True), "no gradient"),
        ({**LOLA, "memory": [{**WINDOW, "shape": "sliding"}, SPARSE, "state"]}, ON_GPU, "moves by chunks"),
        ({**LOLA, "memory": [WINDOW, {**SPARSE, "size": 600}, "state"]}, ON_GPU, "pairs compete"),
        ({**LOLA, "memory": [WINDOW, {**SPARSE, "size": 0}, "state"]}, ON_GPU, "a cache with a size"),
        ({**LOLA, "memory": [WINDOW, {**SPARSE, "position": "none"}, "state"]}, ON_GPU, "alike"),
    ],
)
def test_settings_that_do_not_fit_have_a_reason(head: dict[str, Any], setting: Setting, why: str) -> None:
    forms = {lowered_part.part: lowered_part.form for lowered_part in list_forms(graph_of(head), "triton", setting)}
    assert not any(form.startswith(SAYS) for form in forms.values())
    (reason,) = (step.why for step in lower(graph_of(head), "triton", setting).steps if step.covers[0].node.name == "sparse")
    assert why in reason


class OwnRecall(SelfRecall):
    """A custom score that reads the state."""


class OwnError(SquaredError):
    """A custom score that reads the window."""


@pytest.mark.parametrize(("keep", "why"), [(OwnRecall(), "read the state"), (OwnError(), "read the window")])
def test_unsupported_scores_are_refused_with_a_reason(keep: Score, why: str) -> None:
    graph = build_graph(kept_by(keep), GROUPED)
    (reason,) = (step.why for step in lower(graph, "triton", ON_GPU).steps if step.covers[0].node.name == "sparse")
    assert why in reason


def test_ranks_compare_as_scores_do() -> None:
    """Equal scores have one place in the order, although float32 cannot distinguish these scores."""
    score = torch.tensor([0.5, 0.25, 0.5 + 1e-12, 0.25, 0.75], dtype=torch.float64)[None, :, None]
    assert places(score)[0, :, 0].tolist() == [1, 0, 2, 0, 3]


def test_auto_selects_the_kernel_on_a_gpu_including_the_read() -> None:
    (step,) = (step for step in lower(graph_of(LOLA), "auto", ON_GPU).steps if step.form.description.startswith(SAYS))
    assert step.names == ("window", "sparse", "keys", "state", "read")
    assert [form.names for form in step.instead] == [("window",), ("sparse", "keys", "state"), ("read",)]


class Refusing:
    """A kernel that is installed but refuses every call."""

    def missing(self) -> None:
        return None

    def __call__(self, *inputs: Any, **options: Any) -> None:
        raise Refused("of a test")


def test_separate_forms_run_if_the_kernel_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, data = complete(LOLA), inputs(GROUPED, 1, 14).to(torch.float32)
    module = build_head(spec, GROUPED).float()
    with torch.no_grad():
        expected, held = run(module, data, backend="torch")
        monkeypatch.setattr(lola, "WALK", Refusing())
        with pytest.warns(FallsBack, match="of a test"):
            actual, kept = run(module, data, backend="triton")
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(kept, held)
