"""``python -m evidence.repeats FOLDER``: count the places of the first wrong digits of passkeys.

FOLDER is an output of ``compose eval --tasks passkey -o``. A model that finds each digit by the preceding digit fails only after a
digit that occurs twice in the key.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Literal

End = Literal["right", "first digit", "after a digit that the key has twice", "after another digit"]


def classify_answer(key: str, written: str) -> End:
    """Return the kind of place of the first wrong digit in an answer."""
    digits = "".join(letter for letter in written if letter.isdigit())[: len(key)]
    wrong = next((position for position, digit in enumerate(key) if digits[position : position + 1] != digit), None)
    if wrong is None:
        return "right"
    if wrong == 0:
        return "first digit"
    return "after a digit that the key has twice" if key.count(key[wrong - 1]) > 1 else "after another digit"


def count_ends(folder: Path) -> dict[tuple[str, int], Counter[End]]:
    """Count the kinds of passkey answers in an evaluation, by model and length in tokens. Raises OSError."""
    counts: dict[tuple[str, int], Counter[End]] = {}
    for line in (folder / "samples.jsonl").read_text(encoding="utf-8").splitlines():
        sample = json.loads(line)
        if sample["task"] == "passkey":
            ends = counts.setdefault((sample["model"], sample["length"]), Counter())
            ends[classify_answer(sample["answers"][0], sample["written"])] += 1
    return counts


if __name__ == "__main__":
    for name in sys.argv[1:]:
        for (model, length), ends in count_ends(Path(name)).items():
            print(f"{model}, {length:,} tokens: {', '.join(f'{end} {count}' for end, count in sorted(ends.items()))}")
