"""A model whose tensors are read on demand gives its layers the same inputs as in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from composer.training.model_on_disk import StoredModel
from composer.weights.sources import open_model
from tests.composer.hosts.families import small
from tests.composer.training.runs import VOCABULARY, rows_of


def test_padding_tokens_outside_the_batchs_embeddings_are_accepted(tmp_path: Path) -> None:
    """Only a batch's rows of the embeddings are read, fewer than the config's padding token."""
    source: Any = small("qwen3", vocab_size=VOCABULARY, pad_token_id=VOCABULARY - 1)
    source.save_pretrained(tmp_path)
    batch = rows_of(lengths=(9,)).batch([0])
    assert len(batch.ids.unique()) < VOCABULARY - 1
    hidden = StoredModel(open_model(tmp_path)).layer_inputs(batch)
    assert torch.equal(hidden.hidden, source.get_input_embeddings()(batch.ids))
