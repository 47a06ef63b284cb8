"""The program of the process in which llama.cpp runs a GGUF file: see ``composer/exporting/gguf/folder.py``.

It reads a request in JSON from its standard input, and writes the logits of the last tokens of each row to the file of its
argument, and the tokens of the text to its standard output.
"""

from __future__ import annotations

import json
import sys

import numpy as np

FLOAT32 = 0
"""llama.cpp's number of the type, in which the cache of keys and values is kept."""


def main(answers: str) -> None:
    from llama_cpp import Llama  # pyright: ignore[reportMissingImports]

    request = json.load(sys.stdin)
    length, count, steps = max(map(len, request["rows"])), request["kept"], request["steps"]
    model = Llama(
        request["file"],
        n_ctx=length,
        n_batch=length,
        n_threads=request["threads"],
        n_threads_batch=request["threads"],
        logits_all=True,
        type_k=FLOAT32,
        type_v=FLOAT32,
        verbose=False,
    )
    logits = []
    for row in request["rows"]:
        model.reset()
        model.eval(row[:-steps])
        for token in row[-steps:]:
            model.eval([token])
        logits.append(model.scores[len(row) - steps - count : len(row)].copy())
    np.save(answers, np.stack(logits).astype(np.float32))
    print(json.dumps(model.tokenize(request["text"].encode(), add_bos=True, special=True)))


if __name__ == "__main__":
    main(sys.argv[1])
