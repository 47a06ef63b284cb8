"""Implied weights equal their formulas, in pieces as in one call, by documents, in inference mode, and with bounded memory."""

from __future__ import annotations

import math
import weakref
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from blocks.flow import Tokens
from blocks.legend import Shape
from composer.model import stepwise
from composer.model.implicit_attention import implicit_attention
from tests.laws.cases import SMALL, build_head, complete, inputs

LOLA = {
    "position": "rope",
    "feature_map": "hedgehog",
    "memory": [
        {"kind": "window", "size": 5, "shape": "terraced", "weight": "learned"},
        {"kind": "sparse", "size": 3, "weight": "same"},
        "state",
    ],
}


def test_weights_of_a_full_memory_equal_softmax() -> None:
    shape = SMALL.shape(4)
    head, data = build_head(complete({"position": "none", "memory": ["full"]}), shape), inputs(shape, 2, 12)
    weights = implicit_attention(head, data.of_head(), range(12), "auto").total()
    for query in range(12):
        keys = data.key[:, : query + 1].repeat_interleave(2, dim=2)
        logits = torch.einsum("bhd,bshd->bhs", data.query[:, query], keys) / math.sqrt(8)
        torch.testing.assert_close(weights[:, query, :, : query + 1], logits.softmax(-1), rtol=0, atol=1e-12)
        assert not weights[:, query, :, query + 1 :].any()


def test_weights_of_a_state_equal_decayed_products_of_features() -> None:
    """The weights are φ(q)·φ(k)γ^(t-s) over their sum, with φ = elu + 1 and the gate's decay γ."""
    shape = SMALL.shape(4)
    gated = {"kind": "state", "gate": "constant"}
    head, data = build_head(complete({"position": "none", "feature_map": "elu", "memory": [gated]}), shape), inputs(shape, 1, 9)
    weights = implicit_attention(head, data.of_head(), range(9), "auto").total()
    (piece,) = stepwise.pieces(head, data.of_head(), "auto")
    decay = (
        piece.values["state_gate", "decay"]
        .squeeze(-1)
        .cumsum(1)
        .repeat_interleave(4 // piece.values["state_gate", "decay"].shape[2], 2)
    )
    features = (torch.nn.functional.elu(states) + 1 for states in (data.query, data.key.repeat_interleave(2, dim=2)))
    products = torch.einsum("bthf,bshf->bths", *features)
    products = products * (decay[:, :, :, None] - decay.transpose(1, 2)[:, None]).exp()
    products = products * torch.ones(9, 9).tril()[None, :, None]
    torch.testing.assert_close(weights, products / products.sum(-1, keepdim=True), rtol=0, atol=1e-12)


def test_weights_in_pieces_equal_those_of_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = SMALL.shape(4)
    for head in (LOLA, {"memory": ["full"]}, {"memory": [{"kind": "latents", "size": 8}]}):
        monkeypatch.setattr(stepwise, "LONGEST", 1024)
        made, data = build_head(complete(head), shape), inputs(shape, 2, 50)
        whole = implicit_attention(made, data.of_head(), (3, 30, 49), "auto")
        monkeypatch.setattr(stepwise, "LONGEST", 16)
        assert len(list(stepwise.pieces(made, data.of_head(), "auto"))) == 4
        parted = implicit_attention(made, data.of_head(), (3, 30, 49), "auto")
        for name, weights in whole.weights().items():
            torch.testing.assert_close(parted.weights()[name], weights, rtol=0, atol=1e-11)


def test_weights_between_documents_are_0() -> None:
    shape = SMALL.shape(4)
    made, data = build_head(complete(LOLA), shape), inputs(shape, 1, 40)
    segment = torch.tensor([[1] * 15 + [2] * 25])
    data.tokens = Tokens(torch.cat((torch.arange(15), torch.arange(25)))[None], segment)
    weights = implicit_attention(made, data.of_head(), (14, 15, 39), "auto")
    total = weights.total()
    assert weights.error() < 1e-10
    assert not total[:, 1:, :, :15].any()
    assert total[:, 2, :, 15:].abs().gt(0).any(1).all()


@pytest.mark.parametrize("memory", [["meta", "state"], [{"kind": "delta", "steps": 2}]])
def test_heads_built_in_inference_mode_have_the_same_weights(memory: Any) -> None:
    spec, shape = complete({"feature_map": "hedgehog", "memory": memory, "output": "norm"}), SMALL.shape(4)
    wanted = implicit_attention(build_head(spec, shape), inputs(shape, 1, 9).of_head(), (3, 8), "auto").total()
    with torch.inference_mode():
        head = build_head(spec, shape)
        weights = implicit_attention(head, inputs(shape, 1, 9).of_head(), (3, 8), "auto").total()
        assert all(parameter.is_inference() for parameter in head.parameters())
    torch.testing.assert_close(weights, wanted, rtol=0, atol=0)


LONG: dict[str, Any] = {
    "window, sparse cache and state": {
        "feature_map": "hedgehog",
        "memory": [{"kind": "window", "size": 128, "shape": "terraced"}, {"kind": "sparse", "size": 64}, "state"],
    },
    "full": {"memory": ["full"]},
    "gated state": {
        "position": "none",
        "conv": "causal",
        "feature_map": "hedgehog",
        "memory": [{"kind": "state", "gate": "channel"}],
    },
    "delta": {"feature_map": "elu", "memory": ["delta"]},
    "latents": {"memory": [{"kind": "latents", "size": 8}]},
}


class LiveBytes(TorchDispatchMode):
    """The bytes of live tensors that operations have created, and their maximum."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        place, size = storage._cdata, storage.nbytes()
        if place in self._known:
            return

        def freed(_: object) -> None:
            del self._known[place]
            self.live -= size

        self._known[place] = weakref.ref(storage, freed)
        self.live += size
        self.peak = max(self.peak, self.live)


def test_live_bytes_are_counted_until_they_are_freed() -> None:
    """Tensors that only an autograd graph holds count, views do not."""
    start = torch.ones(1000, requires_grad=True)
    with LiveBytes() as counted:
        end = start.exp().exp().view(10, 100)
        assert counted.live == 8000
        end.sum().backward()
        del end
        assert counted.live == start.grad.nbytes  # pyright: ignore[reportOptionalMemberAccess]
    assert 12_000 <= counted.peak <= 20_000


@pytest.mark.parametrize("name", LONG)
def test_no_matrix_of_all_pairs_is_allocated(name: str) -> None:
    """One T × T matrix of one head would have 256 MiB."""
    shape, length = Shape(hidden_size=8, heads=1, key_heads=1, head_dim=4), 8192
    head, data = build_head(complete(LONG[name]), shape).float(), inputs(shape, 1, length).to(torch.float32)
    with LiveBytes() as counted:
        weights = implicit_attention(head, data.of_head(), (length // 2, length - 1), "auto")
    assert weights.total().shape == (1, 2, 1, length)
    assert weights.error() < 1e-5
    assert counted.peak < 2**27
