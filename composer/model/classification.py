"""The classifier of whole texts: a composed model whose last hidden states are averaged over a text's tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.utils.generic import can_return_tuple

from blocks.tensors import accumulating
from composer.model.call_arguments import check_passed
from composer.model.configuration import ComposedConfig
from composer.model.modeling import ComposedPreTrainedModel, composed_model
from composer.model.own_host import Model, Pretrained


class ComposedForSequenceClassification(ComposedPreTrainedModel, Pretrained):
    """One document a row, one answer a document; the number of classes is transformers' ``num_labels``."""

    def __init__(self, config: ComposedConfig) -> None:
        super().__init__(config)
        self.num_labels = config.labels = config.num_labels or 2
        self.model: Any = composed_model(Model)(config)
        self.score = nn.Linear(config.hidden_size, self.num_labels, bias=False)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **passed: Any,
    ) -> SequenceClassifierOutput:
        """attention_mask: ``B T``, 1 for real tokens. labels: as transformers has them, ``B`` of whole numbers for classes.
        use_cache: without effect, as a text is classified in one call."""
        check_passed(passed)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            use_cache=False,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
        )
        logits = self.score(_mean(outputs.last_hidden_state, attention_mask))
        loss = None
        if labels is not None:
            loss = self.loss_function(
                labels=labels, pooled_logits=logits, config=self.config, num_items_in_batch=num_items_in_batch
            )
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


def _mean(hidden: Tensor, mask: Tensor | None) -> Tensor:
    """``B T C`` to ``B C``, over real tokens; 0 where a row has none."""
    kind = accumulating(hidden.dtype)
    if mask is None:
        return hidden.mean(1, dtype=kind).to(hidden.dtype)
    real = mask[:, -hidden.shape[1] :].bool()[..., None]
    total = torch.where(real, hidden, 0.0).sum(1, dtype=kind)
    return (total / real.sum(1).clamp(min=1)).to(hidden.dtype)
