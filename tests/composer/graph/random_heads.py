"""Random heads as specs state them. Many of them are invalid."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from pydantic import ValidationError

from blocks.catalogue import CATALOGUE
from composer.graph.composition import HeadSpec

WINDOW, STATE, FULL, SPARSE = {"kind": "window", "size": 4}, {"kind": "state"}, {"kind": "full"}, {"kind": "sparse", "size": 3}
DROP, LATENTS = {**WINDOW, "evict": "drop"}, {"kind": "latents", "size": 8}
FIELDS = {kind: set(part.model_fields) for kind, part in CATALOGUE["memory"].items()}
KINDS = {"conv": "causal", "unshare": "copies", "mix_input": "conv"}
HEADS = st.fixed_dictionaries(
    {
        "memory": st.lists(
            st.builds(
                lambda memory, more: memory | {name: value for name, value in more.items() if name in FIELDS[memory["kind"]]},
                st.sampled_from([WINDOW, DROP, {**WINDOW, "shape": "terraced"}, STATE, {"kind": "delta"}, FULL, LATENTS, SPARSE]),
                st.fixed_dictionaries(
                    {},
                    optional={
                        "weight": st.sampled_from(["learned", "token", 0.5]),
                        "keep": st.sampled_from(["recent", "squared_error", "overestimate"]),
                        "gate": st.sampled_from(["head", "from_key"]),
                        "normalise": st.just(False),
                    },
                ),
            ),
            min_size=1,
            max_size=4,
        )
    },
    optional={
        "feature_map": st.sampled_from(
            ["elu", "identity", {"kind": "elu", "linear": True, "dim": 5}, {"kind": "elu", "linear": True, "skip": True, "dim": 8}]
        ),
        "conv": st.lists(st.sampled_from("qkv"), min_size=1, unique=True).map(lambda inputs: {"inputs": inputs}),
        "mix_input": st.sampled_from(
            [
                {"kind": "conv"},
                {"kind": "conv", "feeds": "qk"},
                {"kind": "rglru", "both_ways": True},
                {"kind": "rglru", "blocks": 3},
            ]
        ),
        "unshare": st.sampled_from(["copies", {"inputs": ["v"]}]),
        "qk_norm": st.just("rms"),
        "flow": st.just("parallel"),
        "graph": st.lists(st.sampled_from(["pairs -> m0", "pairs -> m1", "m0 -> m1", "m1 -> m2", "m2 -> m3"]), min_size=1),
        "read": st.sampled_from(["sum", "mixture"]),
    },
)


def head_of(fields: dict[str, Any]) -> HeadSpec | None:
    """Return the head with memories m0, m1 and so on, or None if a schema rejects it."""
    memories = [{**memory, "name": f"m{index}"} for index, memory in enumerate(fields["memory"])]
    parts = {name: {"kind": kind, **fields[name]} for name, kind in KINDS.items() if isinstance(fields.get(name), dict)}
    try:
        return HeadSpec.model_validate({**fields, **parts, "memory": memories})
    except ValidationError:
        return None
