"""LoLCATs (arXiv:2410.10254) and its workshop version."""

from __future__ import annotations

from evidence.claims.claim import Claim
from evidence.verdict import Place, below

MAPS = {"1 + ELU": "elu", "ReLU": "relu", "exp": "exp"}
ROWS = {
    f"{name}{label}": f"transfer/attention-transfer-{kind}{suffix}"
    for label, suffix in ((", without", "-without"), ("", ""))
    for name, kind in MAPS.items()
}
FINAL, MSE, KL = "perplexity", "attention MSE", "attention KL"

CLAIMS = (
    Claim(
        "Attention transfer before LoRA helps with every feature map, and exp is the best map",
        "LoLCATs (workshop), section 4.1, table 1",
        "Final perplexity without and with transfer: 1 + ELU 556 and 3.38, ReLU 1,421 and 3.52, exp 6.78 and 3.11. "
        "Attention MSE: 17.13 and 1.89, 17.25 and 1.76, 11.88 and 0.98.",
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
        "Heads have linear attention only, as in the paper's table. Data: stories in rows of 128 tokens. After 600 "
        "steps of fine-tuning, which also trains the maps, students without transfer are close to the others. After 80 "
        "steps of 8 rows they had 7.3, 4.5 and 3.2, and with transfer 2.3, 2.5 and 1.9.",
    ),
)
