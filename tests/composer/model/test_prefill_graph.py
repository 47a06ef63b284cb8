"""A prefill of every causal spec of the package is one graph: torch.compile breaks it nowhere, torch.export takes it."""

from __future__ import annotations

from tests.composer.programs import printed

PROGRAM = """
    import torch
    import composer
    from composer.spec.shipped import shipped_specs
    from tests.composer.model.models import llama, tokens

    class Logits(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, ids):
            return self.model(ids, use_cache=False).logits

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    small = {"lola": ["head.memory.0.size=5", "head.memory.1.size=3"], "lolcats-terraced": ["head.memory.0.size=5"]}
    for spec in shipped_specs():
        if "/" in spec or spec == "latte-bidirectional":
            continue
        torch._dynamo.reset()
        model = Logits(composer.build(spec, llama(num_hidden_layers=2), overrides=small.get(spec, [])))
        ids = tokens(2, 19)
        expected = model(ids)
        breaks = torch._dynamo.explain(model)(ids).graph_break_count
        for found in (torch.compile(model, backend="eager")(ids), torch.export.export(model, (ids,)).module()(ids)):
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
        print(spec, breaks)
"""
"""The first call is not compiled: it lowers the heads' graphs, which is Python's work and done once."""


def test_a_prefill_is_one_graph() -> None:
    """In a process of its own: in this one, shapes are checked at every call, which no compiler looks through."""
    found = dict(line.split() for line in printed(PROGRAM).splitlines())
    assert len(found) > 20
    assert set(found.values()) == {"0"}
