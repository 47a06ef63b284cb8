"""A step of decode is one graph: torch.compile finds nothing in it that it would have to leave to Python or to wait for."""

from __future__ import annotations

from tests.composer.programs import printed

PROGRAM = """
    import copy
    import torch
    import composer
    from tests.composer.model.models import llama, tokens

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    window = ["head.memory.0.size=5"]
    for spec, overrides in {"lolcats": window, "lawcat": [], "gated-delta": [], "latte-macchiato": window}.items():
        torch._dynamo.reset()
        model = composer.build(spec, llama(num_hidden_layers=1), overrides=overrides)
        compiled = torch.compile(model, fullgraph=True, backend="eager", dynamic=False)
        for batch in (1, 4):
            ids = tokens(batch, 11)
            cache = model(ids[:, :9], use_cache=True).past_key_values
            other = copy.deepcopy(cache)
            for column in (9, 10):
                expected = model(ids[:, column : column + 1], past_key_values=cache).logits
                found = compiled(ids[:, column : column + 1], past_key_values=other).logits
                torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
        print(spec)
"""
"""Terraced windows are left out: how many pairs fall out of one depends on where its rows stand."""


def test_a_step_of_decode_is_one_graph() -> None:
    """In a process of its own: in this one, shapes are checked at every call, which no compiler looks through."""
    assert printed(PROGRAM).split() == ["lolcats", "lawcat", "gated-delta", "latte-macchiato"]
