"""The reference of each shipped spec, and the equation or the published code that the reference states.

A reference follows the spec's comments where these name a difference from the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tests.laws.published.latte import latte, latte_bidirectional, latte_conv, latte_macchiato, latte_rglru, rglru_window
from tests.laws.published.layer import WINDOW, Reference
from tests.laws.published.numerators import (
    delta,
    deltaproduct,
    discrete_mamba2,
    gated_delta,
    gated_deltanet,
    gdn2,
    gla,
    granite_mamba2,
    hydra_delta,
    hypenet,
    kda,
    lawcat_delta,
    liger,
    lizard,
    mamba2,
    mamba3,
    mesa,
    retention,
    rwkv7,
)
from tests.laws.published.softmax import (
    compressed,
    forgetting,
    hedgehog_alone,
    hydra_exact,
    hypenet_exact,
    lawcat,
    linear,
    log_linear,
    lola,
    lolcats,
    lolcats_local_rope,
    lolcats_terraced,
    lolcats_workshop,
    moba,
    normed_softmax,
    nsa,
    softmax,
    streaming,
    t2r,
    window,
)


@dataclass(frozen=True)
class Comparison:
    """heads: the reference of each head of the spec. what: the equation or the published code, in words for a reader."""

    heads: Mapping[str, Reference]
    what: str


FLA = "flash-linear-attention 0.6"
LOLCATS_CODE = "LoLCATs' code (github.com/HazyResearch/lolcats, `src/model/linear_attention`)"

COMPARED: dict[str, Comparison] = {
    "alternating-delta": Comparison(
        {"near": window, "far": lawcat_delta},
        "no paper has it: sliding softmax attention; the gated delta rule, arXiv:2412.06464, eq. 10",
    ),
    "compressed": Comparison(
        {"head": compressed}, "arXiv:2405.04434, eq. 9 to 11, of projected keys and values; rotation as in arXiv:2407.21118"
    ),
    "delta": Comparison({"head": delta}, f"{FLA}, `DeltaNet`; ReLU for SiLU, and no convolution of values, as the spec says"),
    "deltaproduct": Comparison(
        {"head": deltaproduct}, f"{FLA}, `GatedDeltaProduct`; further keys and values without convolution, as the spec says"
    ),
    "forgetting": Comparison({"head": forgetting}, f"arXiv:2503.02130, eq. 5; {FLA}, `ForgettingAttention`"),
    "gated-delta": Comparison(
        {"head": gated_delta}, f"{FLA}, `GatedDeltaNet`, with the map, convolution and decay that the spec says"
    ),
    "gated-deltanet": Comparison({"head": gated_deltanet}, f"{FLA}, `GatedDeltaNet`; transformers, `Qwen3NextGatedDeltaNet`"),
    "gdn-hybrid": Comparison({"head": gated_deltanet, "source": softmax}, f"{FLA}, `GatedDeltaNet`; the source's own attention"),
    "gdn2-hybrid": Comparison({"head": gdn2, "source": softmax}, f"{FLA}, `GatedDeltaNet2`; the source's own attention"),
    "gla": Comparison({"head": gla}, f"{FLA}, `GatedLinearAttention`; decays of query heads, as the spec says"),
    "hedgehog": Comparison({"head": hedgehog_alone}, "arXiv:2402.04347, eq. 3 to 6"),
    "hybrid": Comparison({"head": lolcats, "exact": softmax}, "as `lolcats`; softmax attention"),
    "hydrahead": Comparison(
        {"head": hydra_delta, "exact": hydra_exact},
        f"arXiv:2606.20097, eq. 13 and 14; {FLA}, `GatedDeltaNet`, with the norm that the spec says",
    ),
    "hypenet": Comparison(
        {"head": hypenet, "exact": hypenet_exact},
        "github.com/thunlp/hybrid-linear-attention, `halo/modeling/hypenet`: `LightningAttention` and `Qwen3Attention`",
    ),
    "kda-hybrid": Comparison({"head": kda, "source": softmax}, f"{FLA}, `KimiDeltaAttention`; the source's own attention"),
    "latte": Comparison({"head": latte}, "arXiv:2402.17512, definition 2 and eq. 20"),
    "latte-bidirectional": Comparison({"head": latte_bidirectional}, "arXiv:2402.17512, definition 1"),
    "latte-conv": Comparison({"head": latte_conv}, "arXiv:2402.17512, definition 2 and eq. 15"),
    "latte-macchiato": Comparison({"head": latte_macchiato}, "arXiv:2402.17512, definition 3; arXiv:2402.19427, eq. 1 to 4"),
    "latte-rglru": Comparison({"head": latte_rglru}, "arXiv:2402.17512, definition 2; arXiv:2402.19427, eq. 1 to 4"),
    "lawcat": Comparison({"head": lawcat}, "LAWCAT (Liu et al. 2025), eq. 4 to 8"),
    "lawcat-delta": Comparison(
        {"head": lawcat_delta}, "no paper has it: LAWCAT's map and the gated delta rule, arXiv:2412.06464, eq. 10"
    ),
    "liger": Comparison({"head": liger(WINDOW)}, "arXiv:2503.01496"),
    "linear": Comparison({"head": linear}, "arXiv:2006.16236, eq. 7 and 9"),
    "lizard": Comparison({"head": lizard}, "arXiv:2507.09025, abstract, with the choices that the spec names"),
    "log-linear": Comparison({"head": log_linear}, "arXiv:2506.04761, eq. 4 with a mass; map and convolution that the spec names"),
    "lola": Comparison({"head": lola}, "arXiv:2505.23666, eq. 8 and 13 in chunks, with LoLCATs' σ(w)"),
    "lolcats": Comparison({"head": lolcats}, "LoLA (arXiv:2505.23666), eq. 13 without a cache; map and σ(w) of LoLCATs' code"),
    "lolcats-local-rope": Comparison({"head": lolcats_local_rope}, "as `lolcats`, with rotation in the window alone"),
    "lolcats-terraced": Comparison({"head": lolcats_terraced}, LOLCATS_CODE),
    "lolcats-workshop": Comparison({"head": lolcats_workshop}, "LoLCATs (workshop paper), eq. 6 and 8"),
    "mamba2": Comparison({"head": mamba2}, f"arXiv:2405.21060, section 7; {FLA}, `Mamba2`, without biases of the convolution"),
    "mamba3": Comparison(
        {"head": mamba3}, "arXiv:2603.15569 and github.com/state-spaces/mamba, `Mamba3`, with the differences that the spec names"
    ),
    "mesa": Comparison({"head": mesa}, f"arXiv:2506.05233, eq. 5; {FLA}, `MesaNet`, its systems solved exactly"),
    "moba": Comparison({"head": moba}, "arXiv:2502.13189, eq. 2 to 6; the top k without the own block"),
    "mixed-heads": Comparison({"lolcats": lolcats, "lawcat": lawcat}, "as `lolcats` and `lawcat`"),
    "published/liger-gla": Comparison({"head": liger(WINDOW)}, "Liger's code, `LigerGatedLinearAttention`, on whole texts"),
    "published/lolcats-llama": Comparison({"head": lolcats_terraced}, LOLCATS_CODE),
    "retrieval-aware": Comparison(
        {"head": discrete_mamba2}, "github.com/goombalab/mohawk, `DiscreteMamba2`, with the projections that the spec names"
    ),
    "retention": Comparison({"head": retention}, f"{FLA}, `MultiScaleRetention`"),
    "nsa": Comparison(
        {"head": nsa}, f"{FLA}, `naive_nsa` for branches; arXiv:2502.11089, eq. 5, with the compression that the spec names"
    ),
    "native/granitemoehybrid": Comparison(
        {"head": granite_mamba2, "source": softmax}, "transformers, `GraniteMoeHybridMambaLayer`; the source's own attention"
    ),
    "native/ministral": Comparison({"head": window, "source": softmax}, "as `window`; the source's own attention"),
    "native/mistral": Comparison({"head": window}, "as `window`"),
    "native/qwen3_5": Comparison(
        {"head": gated_deltanet, "kept": normed_softmax}, f"{FLA}, `GatedDeltaNet`; transformers, `Qwen3_5Attention`"
    ),
    "rglru-window": Comparison({"head": rglru_window}, "arXiv:2402.17512, section 4.1; arXiv:2402.19427, eq. 1 to 4"),
    "rwkv7": Comparison(
        {"head": rwkv7}, f"arXiv:2503.14456; {FLA}, `RWKV7Attention`, without token shift, bonus and first values, as the spec says"
    ),
    "softmax": Comparison({"head": softmax}, "arXiv:1706.03762, eq. 1"),
    "streaming": Comparison({"head": streaming}, "arXiv:2309.17453, with positions of the text"),
    "t2r": Comparison({"head": t2r}, "arXiv:2103.13076, eq. 4 and 6"),
    "window": Comparison({"head": window}, "softmax attention (arXiv:1706.03762) over the last tokens"),
}
"""Of every shipped spec."""
