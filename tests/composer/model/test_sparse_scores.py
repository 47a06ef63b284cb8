"""A sparse cache reads the state below it at the right time while pairs enter the state."""

from __future__ import annotations

import pytest
import torch

from blocks.flow import Tokens
from blocks.legend import Shape
from composer.graph.program import HeadInputs
from composer.model.head import Head
from tests.laws.cases import build_head, complete, inputs, run

KEY = torch.tensor([1.0, 0.0], dtype=torch.float64)


@pytest.mark.parametrize("pieces", [(4,), (3, 1), (1, 1, 1, 1)], ids=str)
def test_scores_use_the_state_before_the_decay_of_their_token(pieces: tuple[int, ...]) -> None:
    """The cache has one place above a state that keeps 7 % per token. Of values 8 and 4 the cache keeps 8 and evicts 4. When -1
    follows, the state predicts 4 for both, so that -1 has the larger error. One decay later it would predict 0.27, and 8
    would have the larger error.
    """
    state = {"kind": "state", "gate": {"kind": "constant", "exponent": 0.1}, "normalise": False}
    memory = [{"kind": "window", "size": 1}, {"kind": "sparse", "size": 1, "keep": "self_recall"}, state]
    spec = complete({"position": "none", "feature_map": "relu", "memory": memory, "read": "sum"})
    head = Head(spec, Shape(hidden_size=3, heads=1, key_heads=1, head_dim=2)).double()
    value = torch.tensor([8.0, 4.0, -1.0, 0.0], dtype=torch.float64)[None, :, None, None] * KEY
    key, hidden = KEY.expand(1, 4, 1, 2), torch.zeros(1, 4, 3, dtype=torch.float64)
    held, at = head.empty_state(1, torch.float64, torch.device("cpu")), 0
    for length in pieces:
        columns = slice(at, at + length)
        tokens = Tokens(torch.arange(at, at + length)[None])
        own = HeadInputs(hidden[:, columns], key[:, columns], key[:, columns], value[:, columns], tokens)
        _, held = head(own, held, "torch")
        at += length
    assert held["sparse.position"].flatten().tolist() == [2]
    assert held["state.state"].flatten().tolist()[0] == pytest.approx(8 + 4 * (1 - 2**-0.1))


@pytest.mark.parametrize("scale", ["none", "root"])
@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_scores_use_the_prediction_of_a_state_with_exponential_features(backend: str, scale: str) -> None:
    """The prediction is Σ_s exp(k) exp(k_s) v_s, or divided by √F with a root, for any storage of the state. The pair with the
    smallest error is evicted.
    """
    state = {"kind": "state", "normalise": False, "scale": scale}
    memory = [{"kind": "sparse", "size": 2, "keep": "self_recall"}, state]
    spec = complete({"position": "none", "feature_map": "exp", "memory": memory, "read": "sum"})
    shape = Shape(hidden_size=4, heads=1, key_heads=1, head_dim=2)
    head, data = build_head(spec, shape, noise=0.0), inputs(shape, 1, 12, scale=2.0)
    features = torch.cat((data.key, -data.key), dim=-1)[0, :, 0].exp()
    held, matrix, value = list[int](), torch.zeros(4, 2, dtype=torch.float64), data.value[0, :, 0]
    for t in range(12):
        held.append(t)
        if len(held) > 2:
            answers = features @ matrix / (2.0 if scale == "root" else 1.0)
            least = min(held, key=lambda s: float((answers[s] - value[s]).norm()))
            held.remove(least)
            matrix = matrix + torch.outer(features[least], value[least])
    _, after = run(head, data, backend=backend)
    assert after["sparse.position"].flatten().tolist() == held
