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
    small = {"lola": ["head.memory.0.size=4", "head.memory.1.size=3"], "lolcats-terraced": ["head.memory.0.size=4"]}
    exported = ["softmax", "lolcats", "lolcats-terraced", "lola", "lawcat", "gated-delta", "latte-macchiato"]
    layers = {"alternating-delta": 2, "hybrid": 2, "mixed-heads": 2}
    for spec in shipped_specs():
        if "/" in spec or spec == "latte-bidirectional":
            continue
        torch._dynamo.reset()
        source = llama(num_hidden_layers=layers.get(spec, 1))
        model, ids = Logits(composer.build(spec, source, overrides=small.get(spec, []))), tokens(2, 11)
        expected = model(ids)
        # Strict export is the compiler's one graph, and that graph run through autograd's tracer.
        one = torch.export.export(model, (ids,), strict=True).module() if spec in exported else None
        one = one or torch.compile(model, fullgraph=True, backend="eager", dynamic=False)
        torch.testing.assert_close(one(ids), expected, rtol=1e-9, atol=1e-9)
        print(spec)
"""
"""The first call is not compiled: it lowers the heads' graphs, which is Python's work and done once."""


def test_a_prefill_is_one_graph() -> None:
    """In a process of its own: in this one, shapes are checked at every call, which no compiler looks through."""
    assert len(printed(PROGRAM).split()) > 20
