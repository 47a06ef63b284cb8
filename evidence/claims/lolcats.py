"""LoLCATs (arXiv:2410.10254) and its workshop version."""

from __future__ import annotations

from evidence.claims.claim import Claim
from evidence.verdict import Place, below

MAPS = {"1 + ELU": "elu", "ReLU": "relu", "exp": "exp"}
ROWS = {
    f"{name}{how}": f"transfer/attention-transfer-{kind}{end}"
    for how, end in ((", without", "-without"), ("", ""))
    for name, kind in MAPS.items()
}
FINAL, MSE, KL = "perplexity", "attention MSE", "attention KL"

CLAIMS = (
    Claim(
        "Attention transfer before LoRA ends better, for every map; exp is the best of them",
        "LoLCATs (workshop), section 4.1, table 1",
        "“In all cases, training linear attentions to match softmax … improves linearized LLM perplexity on validation "
        "responses.” Final perplexity without and with: 1 + ELU 556 and 3.38, ReLU 1,421 and 3.52, exp 6.78 and 3.11. Attention "
        "MSE: 17.13 and 1.89, 17.25 and 1.76, 11.88 and 0.98.",
        ROWS,
        ("perplexity before stage 2", FINAL, MSE, KL),
        (
            *(
                below(
                    f"{name} with transfer below without, {column}",
                    Place(ROWS[name], column),
                    Place(ROWS[f"{name}, without"], column),
                )
                for name in MAPS
                for column in (FINAL, MSE, KL)
            ),
            *(
                below(f"exp below {name}, {FINAL}", Place(ROWS["exp"], FINAL), Place(ROWS[name], FINAL))
                for name in ("1 + ELU", "ReLU")
            ),
        ),
        "Heads of linear attention alone, without a window, as in the table; stories alone, in rows of 128 tokens. After 600 steps "
        "of fine-tuning, in which maps learn on, those without transfer are near the others; after 80 steps of 8 rows they had "
        "7.3, 4.5 and 3.2 where those with transfer had 2.3, 2.5 and 1.9.",
    ),
)
