"""On-policy distillation: the student continues prompts of the data, and learns the teacher's distribution at its own tokens (GKD:
Agarwal et al. 2024, arXiv:2306.13649, algorithm 1).

All random numbers of a step follow from the seed and the number of the step. They do not depend on the number of processes, and a
continued run draws the same ones. No gradient flows through the choice of tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from composer.data.chat import end_tokens
from composer.data.packing import IGNORED, Batch, Document, pack
from composer.errors import TrainingError
from composer.model.cache import CACHE, new_cache
from composer.model.modeling import ComposedForCausalLM
from composer.spec.recipe import Finetune, OnPolicy, Stage
from composer.training.options import TrainingOptions
from composer.training.processes import by_all, count, rank

OF_CONTINUATIONS = 2**64 - 2
"""The random stream of continuations; ``composer.data.packing`` has the others of a seed."""


@dataclass(frozen=True, eq=False)
class ContinuedBatch(Batch):
    """Rows of a prompt and its continuation by the student, which is what is predicted."""


def generalised_divergence(student: Tensor, teacher: Tensor, stage: OnPolicy) -> Tensor:
    """Return the divergence of distributions with the logits N V, at the temperature of the stage: N.

    With P the teacher's, Q the student's and M = β P + (1 - β) Q, it is KL(P ‖ Q) (forward), KL(Q ‖ P) (reverse), or the
    generalised Jensen-Shannon divergence β KL(P ‖ M) + (1 - β) KL(Q ‖ M) (equation 1 of the paper). It is not multiplied by the
    squared temperature.
    """
    log_q, log_p = ((logits / stage.temperature).log_softmax(-1) for logits in (student, teacher))
    if stage.divergence == "forward_kl":
        return _kl(log_p, log_q)
    if stage.divergence == "reverse_kl":
        return _kl(log_q, log_p)
    beta = torch.tensor(0.5 if stage.beta is None else stage.beta, dtype=log_q.dtype, device=log_q.device)
    log_mixture = torch.logaddexp(log_p + beta.log(), log_q + torch.log1p(-beta))
    return beta * _kl(log_p, log_mixture) + (1 - beta) * _kl(log_q, log_mixture)


def _kl(log_of: Tensor, log_from: Tensor) -> Tensor:
    """Return KL(of ‖ from) of log-probabilities N V: N."""
    return functional.kl_div(log_from, log_of, reduction="none", log_target=True).sum(-1)


def uniform_numbers(seed: int, step: int, how_many: int) -> np.ndarray:
    """Return the random numbers of a step, from 0 to below 1, float64."""
    key, counter = (np.array(numbers, dtype=np.uint64) for numbers in ([seed % 2**64, OF_CONTINUATIONS], [0, 0, 0, step]))
    bits = np.random.Philox(key=key, counter=counter).random_raw(how_many)
    return (np.asarray(bits) >> np.uint64(11)) * 2.0**-53


def prompt_of(ids: Tensor, labels: Tensor, position: Tensor, number: float, longest: int) -> Tensor:
    """Return the prompt of a row T: the text of a document before the start of an answer, at most its last ``longest`` tokens.

    An answer starts where a learned token follows one that is not learned. A row of texts that are learned from their start has no
    such place, and is cut before any learned token. number: from 0 to below 1, chooses the place.
    """
    is_learned = labels != IGNORED
    begins = is_learned & (position > 1)
    begins[1:] &= ~is_learned[:-1]
    places = (begins if bool(begins.any()) else is_learned).nonzero()[:, 0]
    place = int(places[int(number * len(places))])
    return ids[max(0, place - int(position[place]), place - longest) : place]


@torch.no_grad()
def continue_prompts(
    model: ComposedForCausalLM, prompts: Sequence[Tensor], numbers: Tensor, temperature: float, columns: int
) -> Tensor:
    """Return the tokens that a model writes after prompts, ``B N``. numbers: ``B N`` float64, from 0 to below 1; each chooses a
    token by the cumulative distribution. columns: only tokens below this number are written."""
    width, device = max(map(len, prompts)), model.device
    ids, mask = (torch.zeros(len(prompts), width, dtype=torch.int64) for _ in range(2))
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :], mask[row, width - len(prompt) :] = prompt, 1
    options: dict[str, Any] = {CACHE: new_cache(model.config), "use_cache": True}
    tokens, mask, numbers = ids.to(device), mask.to(device), numbers.to(device)
    written: list[Tensor] = []
    for column in range(numbers.shape[1]):
        read = {"attention_mask": mask, "logits_to_keep": 1} if column == 0 else {}
        logits = model(input_ids=tokens, **read, **options).logits[:, -1, :columns]
        mass = (logits.double() / temperature).softmax(-1).cumsum(-1)
        tokens = torch.searchsorted(mass, numbers[:, column, None] * mass[:, -1:], right=True).clamp_(max=logits.shape[-1] - 1)
        written.append(tokens)
    return torch.cat(written, 1)


def continue_batch(student: ComposedForCausalLM, teacher: nn.Module, batch: Batch, stage: OnPolicy, seed: int, step: int) -> Batch:
    """Return the rows as the student continues them, or the batch itself in steps that learn from texts. The processes share the
    work, and each has all rows afterwards."""
    chance, *numbers = uniform_numbers(seed, step, 1 + len(batch) * (1 + stage.tokens))
    if chance >= stage.share:
        return batch
    by_row = torch.tensor(numbers, dtype=torch.float64).unflatten(0, (len(batch), -1))
    configs: list[Any] = [student.config, teacher.config]
    columns = min(config.get_text_config().vocab_size for config in configs)
    longest = batch.ids.shape[1] - stage.tokens
    prompts = [
        prompt_of(ids, labels, position, float(number), longest)
        for ids, labels, position, number in zip(batch.ids, batch.labels, batch.position, by_row[:, 0], strict=True)
    ]
    own = list(range(rank(), len(batch), count())) or [0]  # without a row of its own a process still joins the communication

    def write() -> dict[int, list[int]]:
        student.eval()
        tokens = continue_prompts(student, [prompts[row] for row in own], by_row[own, 1:], stage.temperature, columns)
        return dict(zip(own, tokens.tolist(), strict=True))

    written = {row: tokens for part in by_all(write) for row, tokens in part.items()}
    return continued(prompts, written, end_tokens(student))


def continued(prompts: Sequence[Tensor], written: Mapping[int, Sequence[int]], ends: Iterable[int]) -> ContinuedBatch:
    """Return the rows of prompts and their continuations, by the number of the prompt, up to the first token that ends a text."""
    documents, last = [], frozenset(ends)
    for row, prompt in enumerate(prompts):
        tokens = written[row]
        length = next((place for place, token in enumerate(tokens, 1) if token in last), len(tokens))
        ids = np.array([*prompt.tolist(), *tokens[:length]], np.int32)
        documents.append(Document(ids, np.arange(len(ids)) >= len(prompt)))
    rows = pack(documents, max(map(len, documents)), how="padded")
    return ContinuedBatch(*rows.batch(range(len(rows)))._tensors())


def check_on_policy(stages: Mapping[str, Stage], options: TrainingOptions, sequence: int | None = None) -> None:
    """Raise TrainingError if a run cannot continue prompts. sequence: the number of tokens of a row, once it is known."""
    stage = next((stage.on_policy for stage in stages.values() if isinstance(stage, Finetune)), None)
    if stage is None:
        return
    remedy = "or train without it: --set recipe.finetune.on_policy=null"
    if options.teacher_logits is not None:
        raise TrainingError(
            "--teacher-logits: recipe.finetune.on_policy needs the teacher itself. Stored logits are of the texts of the data, and "
            f"the student writes other texts. Leave out --teacher-logits, {remedy}"
        )
    if sequence is not None and stage.tokens >= sequence:
        raise TrainingError(
            f"recipe.finetune.on_policy.tokens is {stage.tokens:,}, and a row has {sequence:,} tokens: none is left for a "
            f"prompt. Set fewer tokens or longer rows (recipe.sequence), {remedy}"
        )
