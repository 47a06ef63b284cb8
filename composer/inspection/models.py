"""Runs a model and its teacher on one text, and computes the findings on every group of heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from composer.graph.program import HeadInputs
from composer.inspection.findings import Answered, HeadFindings, HeadLikeness, PlainArray, Stream
from composer.inspection.heads import head_findings, on_answers
from composer.inspection.measures import sum_bins
from composer.inspection.texts import LookedText
from composer.model.attention import ComposedAttention, LayerCall
from composer.model.head import Head, anatomy
from composer.model.head_visits import visiting_heads
from composer.model.hosts import attentions
from composer.model.implicit_attention import implicit_attention
from composer.model.modeling import ComposedForCausalLM
from composer.training.transfer import heads_output, target_of

Listener = Callable[[str], None]


class TextRun:
    """The runs on one text. queries: columns to compute weights of. size: columns of a bin. layers: those to inspect."""

    def __init__(self, text: LookedText, queries: Sequence[int], layers: Sequence[int], size: int, tell: Listener) -> None:
        self.text, self.queries, self.layers, self.size, self._tell = text, tuple(queries), set(layers), size, tell
        self.found_at = {answer - 1: places for answer, places in zip(text.answers, text.found_at, strict=True) if places}
        self._heads: dict[tuple[int, str], HeadFindings] = {}
        self._teacher: dict[int, dict[int, tuple[Tensor, PlainArray]]] = {}
        """By layer and number of the query head."""

    @property
    def heads(self) -> tuple[HeadFindings, ...]:
        """The findings so far, layer by layer and head by head."""
        return tuple(sorted(self._heads.values(), key=lambda head: (head.layer, head.numbers)))

    def student(self, model: ComposedForCausalLM) -> tuple[Answered | None, tuple[Tensor, ...]]:
        """Run the model, and inspect its heads. Returns its answers, and its hidden states."""

        def visit(layer: int, name: str, head: Head, inputs: HeadInputs) -> None:
            if layer in self.layers:
                self._tell(f"layer {layer}, {name}")
                options = {"size": self.size, "backend": model.base.backend}
                self._heads[layer, name] = head_findings(layer, name, head, inputs, self.queries, self.found_at, **options)

        with visiting_heads(model, visit):
            return self._through(model)

    def teacher(self, model: ComposedForCausalLM, student: ComposedForCausalLM) -> tuple[Answered | None, tuple[Tensor, ...]]:
        """Run the teacher, after ``student``: compute its weights, and compare the student's heads on the teacher's hidden states.
        Returns its answers, and its hidden states."""
        student_attentions = {attention.layer: attention for _, attention in attentions(student)}

        def visit(layer: int, name: str, head: Head, inputs: HeadInputs) -> None:
            if layer in self.layers:
                self._tell(f"teacher, layer {layer}")
                implied = implicit_attention(head, inputs, self.queries, model.base.backend).cpu()
                rows, on_answer = implied.total()[0].transpose(0, 1), on_answers(implied, self.found_at)
                by_head = zip(anatomy(head).numbers, zip(rows, on_answer, strict=True), strict=True)
                self._teacher.setdefault(layer, {}).update(by_head)

        listened = [attention for _, attention in attentions(model)]
        for attention in listened:
            attention.listener = partial(self._compare, attention.layer, student_attentions, student)
        try:
            with visiting_heads(model, visit):
                return self._through(model)
        finally:
            for attention in listened:
                attention.listener = None

    def _compare(
        self,
        layer: int,
        student_attentions: Mapping[int, ComposedAttention],
        student: ComposedForCausalLM,
        call: LayerCall,
        options: Mapping[str, Any],
        attended: Tensor,
    ) -> None:
        """A ``listener`` of the teacher's attention: the student's layer on the same hidden states."""
        if layer not in self.layers:
            return
        target, heads_of_teacher = target_of(call, options, attended), sorted(self._teacher.pop(layer).items())
        rows = torch.stack([weighed for _, (weighed, _) in heads_of_teacher])
        on_answers_of_teacher = np.stack([on_answer for _, (_, on_answer) in heads_of_teacher])
        weights: dict[str, Tensor] = {}

        def visit(at: int, name: str, head: Head, inputs: HeadInputs) -> None:
            implied = implicit_attention(head, inputs, self.queries, student.base.backend).cpu()
            weights[name] = implied.total()[0].transpose(0, 1)

        with torch.no_grad(), visiting_heads(student, visit):
            heads = heads_output(student_attentions[layer], target, student.base.backend)
        for key, findings in self._heads.items():
            if findings.layer != layer:
                continue
            place = list(findings.numbers)
            mine, theirs = heads[0, :, place].double().cpu(), target.heads[0, :, place].double().cpu()
            likeness = HeadLikeness(
                mse=(mine - theirs).square().mean((0, 2)).numpy(),
                cosine=torch.nn.functional.cosine_similarity(mine, theirs, dim=-1).mean(0).numpy(),
                divergence=_divergence(rows[place].double(), weights[findings.name].double()),
            )
            beside = {
                "teacher": sum_bins(rows[place].float(), self.size).numpy(),
                "teacher_found": on_answers_of_teacher[place],
                "likeness": likeness,
            }
            self._heads[key] = findings.model_copy(update=beside)

    @torch.no_grad()
    def _through(self, model: ComposedForCausalLM) -> tuple[Answered | None, tuple[Tensor, ...]]:
        """Run a model on the text, with logits for the answers only."""
        ids = torch.tensor([self.text.ids], device=model.device)
        columns = torch.tensor([answer - 1 for answer in self.text.answers] or [len(self.text.ids) - 1], device=model.device)
        output = model(ids, use_cache=False, output_hidden_states=True, logits_to_keep=columns)
        streams = tuple(stream[0].float().cpu() for stream in output.hidden_states)
        if not self.text.answers:
            return None, streams
        wanted = ids[0, list(self.text.answers)]
        loss = torch.nn.functional.cross_entropy(output.logits[0].float(), wanted, reduction="none")
        right = (output.logits[0].argmax(-1) == wanted).tolist()
        return Answered(right=tuple(right), loss=tuple(loss.tolist())), streams


def stream_likeness(student: Sequence[Tensor], teacher: Sequence[Tensor]) -> Stream:
    """Return the likeness of hidden states T C, layer by layer."""
    cosine, error = [], []
    for mine, theirs in zip(student, teacher, strict=True):
        cosine.append(float(torch.nn.functional.cosine_similarity(mine, theirs, dim=-1).mean()))
        error.append(float((mine - theirs).norm() / theirs.norm().clamp(min=1e-12)))
    return Stream(cosine=tuple(cosine), error=tuple(error))


def _divergence(teacher: Tensor, student: Tensor) -> Any:
    """KL of weights, heads × queries × tokens, a mean over queries."""
    if bool((student < -1e-6).any()) or bool((teacher < -1e-6).any()):
        return None
    tiny = torch.finfo(torch.float32).tiny
    shares = [weights / weights.sum(-1, keepdim=True).clamp(min=tiny) for weights in (teacher.clamp(min=0), student.clamp(min=0))]
    ratios = shares[0].clamp(min=tiny).log() - shares[1].clamp(min=tiny).log()
    return (shares[0] * ratios).sum(-1).mean(-1).numpy()
