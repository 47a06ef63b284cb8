"""Where students lose a passkey: ``python -m evidence.repeats FOLDER``, of a folder that ``compose eval --tasks passkey -o`` wrote.

A model that finds each digit by the digit before it goes wrong where a number has that digit twice, and nowhere else.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Literal

End = Literal["right", "first digit", "after a digit that the key has twice", "after another digit"]


def end_of(key: str, written: str) -> End:
    """The kind of place of the first wrong digit in the written number."""
    digits = "".join(letter for letter in written if letter.isdigit())[: len(key)]
    wrong = next((at for at, digit in enumerate(key) if digits[at : at + 1] != digit), None)
    if wrong is None:
        return "right"
    if wrong == 0:
        return "first digit"
    return "after a digit that the key has twice" if key.count(key[wrong - 1]) > 1 else "after another digit"


def counted(folder: Path) -> dict[tuple[str, int], Counter[End]]:
    """How the passkeys of an evaluation ended, by model and length in tokens. Raises OSError."""
    found: dict[tuple[str, int], Counter[End]] = {}
    for line in (folder / "samples.jsonl").read_text(encoding="utf-8").splitlines():
        sample = json.loads(line)
        if sample["task"] == "passkey":
            ends = found.setdefault((sample["model"], sample["length"]), Counter())
            ends[end_of(sample["answers"][0], sample["written"])] += 1
    return found


if __name__ == "__main__":
    for name in sys.argv[1:]:
        for (model, length), ends in counted(Path(name)).items():
            print(f"{model}, {length:,} tokens: {', '.join(f'{end} {count}' for end, count in sorted(ends.items()))}")
