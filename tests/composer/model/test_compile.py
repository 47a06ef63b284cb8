"""A step of decode is one graph: torch.compile finds nothing in it that it would have to leave to Python or to wait for."""

from __future__ import annotations

from tests.composer.programs import printed

PROGRAM = """
    import torch
    import composer
    from composer.spec.loading import load_spec
    from composer.spec.shipped import shipped_specs
    from tests.composer.model.models import llama, tokens

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    source = {layers: llama(num_hidden_layers=layers, hidden_size=32, intermediate_size=32) for layers in (1, 2)}
    for name in shipped_specs():
        spec = load_spec(name)
        if "/" in name or spec.direction == "bidirectional":
            continue
        heads = {"head": spec.head} | {f"heads.{key}": head for key, head in spec.heads.items()}
        small = [
            f"{where}.memory.{index}.size={5 if memory.bounded else 12}"
            for where, head in heads.items()
            for index, memory in enumerate(head.memory if head else ())
            if hasattr(memory, "size")
        ]
        model = composer.build(name, source[2 if name == "alternating-delta" else 1], overrides=small)
        torch._dynamo.reset()
        compiled = torch.compile(model, fullgraph=True, backend="eager", dynamic=False)
        both = name in {"lolcats", "lola", "lawcat", "gated-delta", "latte-macchiato", "softmax"}
        for batch, column in ((1, 9), (4, 10)) if both else ((4, 10),):
            ids = tokens(batch, column + 1)
            caches = [model(ids[:, :column], use_cache=True).past_key_values for _ in range(2)]
            expected = model(ids[:, column:], past_key_values=caches[1]).logits
            found = compiled(ids[:, column:], past_key_values=caches[0]).logits
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
        print(name)
"""
"""At column 10 a chunk of a terraced window of 5 begins, and another one falls."""


def test_a_step_of_decode_is_one_graph() -> None:
    """Of every causal spec that is shipped, of four rows, and of one for those that cover the kinds of memory.

    In a process of its own: in this one, shapes are checked at every call, which no compiler looks through.
    """
    seen = printed(PROGRAM).split()
    assert {"softmax", "lolcats", "lolcats-terraced", "lola", "lawcat", "gated-delta", "latte-macchiato"} < set(seen)
