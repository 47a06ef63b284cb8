"""Stage 2, and training from nothing: the whole model learns to predict the next token, or its teacher's distribution."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from blocks.kernels import FLASH_LINEAR_ATTENTION, Kernel, Refused, gpu_obstacle
from blocks.operation import FLA, Setting
from composer.building.rewrite import Adapter, Trained, write_trained
from composer.data.packing import Batch, PackedRows
from composer.errors import TrainingError
from composer.graph.lowering import AUTO
from composer.model.hosts import attentions
from composer.model.modeling import ComposedForCausalLM
from composer.spec.recipe import Average, Finetune, Lora
from composer.system.notices import warn_fallback
from composer.training.journal import CURVE, LOG
from composer.training.processes import add_over_processes, count, shares
from composer.training.stored_logits import TaughtBatch, stored_divergence
from composer.training.unit import Unit, WholeCourse
from composer.weights.load import load_model
from composer.weights.record import TRAINING, Record
from converters.adapter import OTHERS
from converters.trunk import dtype_name, is_composed

if TYPE_CHECKING:
    from peft import LoraConfig

MODEL = "model"


def warn_if_worse_than_uniform(loss: float | None, vocabulary: int, when: str) -> Iterator[str]:
    """Yield the warning for a next-token loss in nats above that of a uniform guess. when: the time of the loss, in words."""
    if loss is not None and loss > math.log(vocabulary):
        yield (
            f"{when} the held-out loss is {loss:.4g} nats per token. Equal probabilities for all {vocabulary:,} tokens have "
            f"{math.log(vocabulary):.4g}, so the model predicts worse than chance. Train transfer for more steps or at another "
            "learning rate, or change the head."
        )


class FinetuneCourse(WholeCourse):
    """teacher: None if the loss does not use its distribution, or if its logits are part of the batches. from_nothing: whether the
    model has random weights."""

    def __init__(
        self,
        student: ComposedForCausalLM,
        unit: Unit,
        stage: Finetune,
        teacher: nn.Module | None,
        *,
        from_nothing: bool = False,
    ) -> None:
        super().__init__(student, unit)
        self._stage, self._teacher, self._from_nothing = stage, teacher, from_nothing
        self._vocabulary: int = student.config.get_text_config().vocab_size

    def count(self, batch: Batch) -> int:
        return _count(batch, self._stage.average)

    def warn_at_start(self, losses: Mapping[str, float]) -> Iterable[str]:
        if self._stage.needs_teacher or not self._stage.next_token or self._from_nothing or not losses:
            return ()
        return warn_if_worse_than_uniform(losses[MODEL] / self._stage.next_token, self._vocabulary, "Before this stage")

    def _loss(self, batch: Batch, total: float) -> Tensor:
        logits, targets = logits_at_targets(self._student, batch)
        losses = torch.zeros_like(targets, dtype=torch.float32)
        if self._stage.next_token:
            backend = cast("ComposedForCausalLM", self._student).base.backend
            losses = losses + self._stage.next_token * next_token_losses(logits, targets, backend)
        if self._stage.distill and isinstance(batch, TaughtBatch):
            divergences = stored_divergence(logits, batch, batch.predicted, self._stage.temperature)
            losses = losses + self._stage.distill * divergences
        elif self._stage.distill and self._teacher is not None:
            with torch.no_grad():
                wanted, _ = logits_at_targets(self._teacher, batch)
            # Vocabularies may be padded: only the columns that both models have are compared.
            columns = min(logits.shape[-1], wanted.shape[-1])
            divergences = divergence(logits[:, :columns].float(), wanted[:, :columns].float(), self._stage.temperature)
            losses = losses + self._stage.distill * divergences
        return _sum(losses, batch, self._stage.average) / total


def logits_at_targets(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the logits of the N tokens of a batch that are predicted, N V, in the model's dtype, and these tokens, N."""
    is_predicted = batch.predicted
    logits = model(**batch.inputs(), use_cache=False).logits
    return logits[:, : is_predicted.shape[1]][is_predicted], batch.labels[:, 1:][is_predicted]


@torch.no_grad()
def loss_of(model: nn.Module, rows: PackedRows, batch: int, average: Average = "tokens") -> float:
    """The mean loss of a model on rows, in nats: over the tokens that are predicted, or over rows."""
    total, target_count, device = 0.0, 0, next(model.parameters()).device
    for part in rows.in_order(batch * count()):
        target_count += _count(part, average)
        for share, divisor in shares(part, 1, 1.0):
            logits, targets = logits_at_targets(model, share.to(device))
            losses = functional.cross_entropy(logits.float(), targets, reduction="none")
            total += float(_sum(losses, share.to(device), average)) / divisor
    return add_over_processes({"loss": total})["loss"] / max(1, target_count)


def _count(batch: Batch, average: Average) -> int:
    """The divisor of a batch's mean loss: the number of its predicted tokens, or of the rows that have any."""
    return int((batch.targets > 0).sum() if average == "rows" else batch.targets.sum())


def _sum(losses: Tensor, batch: Batch, average: Average) -> Tensor:
    """The sum of the losses N of the predicted tokens, or of their means over each row."""
    if average == "rows":
        losses = losses / batch.targets[:, None].expand_as(batch.predicted)[batch.predicted]
    return losses.sum()


def divergence(logits_of_student: Tensor, wanted: Tensor, temperature: float) -> Tensor:
    """KL(teacher ‖ student) at a temperature, times its square, so that gradients keep their size (Hinton et al. 2015). N."""
    log_predicted, log_wanted = (functional.log_softmax(logits / temperature, dim=-1) for logits in (logits_of_student, wanted))
    return functional.kl_div(log_predicted, log_wanted, reduction="none", log_target=True).sum(-1) * temperature**2


def finetune_unit(student: ComposedForCausalLM, stage: Finetune) -> Unit:
    """One unit of all that the stage trains; everything else is frozen, parts that read images among it. Adapters must be there
    already."""
    adapters: dict[str, nn.Parameter] = {}
    fresh: dict[str, nn.Parameter] = {}
    trunk: dict[str, nn.Parameter] = {}
    of_images = set(student.base_model.parameters()) - set(student.base.parameters())
    for name, parameter in student.named_parameters():
        if parameter in of_images:
            continue
        kind = adapters if ".lora_" in name else fresh if is_composed(name) else trunk
        kind[name] = parameter
    learning = adapters | (trunk if stage.trunk else {})
    student.requires_grad_(False)
    groups = [(stage.lr, learning), (stage.fresh_lr or stage.lr, fresh if stage.fresh else {})]
    for parameter in (parameter for _, group in groups for parameter in group.values()):
        parameter.requires_grad_()
    return Unit(MODEL, stage, groups)


def add_adapters(student: ComposedForCausalLM, lora: Lora, seed: int) -> None:
    """Put PEFT's low-rank adapters on the projections that the recipe names, in place."""
    from peft import inject_adapter_in_model

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        inject_adapter_in_model(lora_config(student, lora), student)


def lora_config(student: ComposedForCausalLM, lora: Lora) -> LoraConfig:
    """The adapters as a config of PEFT."""
    from peft import LoraConfig
    from transformers.pytorch_utils import Conv1D

    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # pyright: ignore[reportArgumentType] - a float will do
        target_modules=projections(student, lora.targets),
        lora_dropout=0.0,
        bias="none",
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in student.modules()),  # as GPT-2 has its matrices
        task_type="CAUSAL_LM",
    )


def projections(student: ComposedForCausalLM, targets: Sequence[str]) -> list[str]:
    """The host's own names of the projections that a recipe calls q, k, v and o; some hosts have several of them in one. Those of a
    text decoder inside another model are full names.

    Raises TrainingError if there is none.
    """
    name, attention = next(attentions(student))
    layer, names = name.rpartition(".")[2], []
    for target in targets:
        target_names = (f"{target}_proj", *OTHERS.get(target, ()))
        projection = next((name for name in target_names if isinstance(getattr(attention, name, None), nn.Module)), None)
        if projection is None:
            raise TrainingError(
                f"The attention of this model has no projection that would be `{target}`: leave it out of lora.targets"
            )
        # Others may have one of the same name outside of their attention.
        names.append(projection if projection == f"{target}_proj" else f"{layer}.{projection}")
    if student.base.is_inside:
        names = [f"{place}.{name.rpartition('.')[2]}" for place, _ in attentions(student) for name in names]
    return list(dict.fromkeys(names))


def adapter_of(student: ComposedForCausalLM, lora: Lora) -> Adapter:
    """The adapters of a student, with the config and the names under which PEFT stores them."""
    from peft import get_peft_model_state_dict

    tensors = {f"base_model.model.{name}": tensor for name, tensor in get_peft_model_state_dict(student).items()}
    config = {key: _plain(value) for key, value in lora_config(student, lora).to_dict().items()}
    return Adapter(config | {"inference_mode": True}, tensors)


def fold_adapters(student: ComposedForCausalLM) -> dict[str, Tensor]:
    """Return the weights that have adapters, with the adapters folded in, by their names in the model."""
    from peft.tuners.lora import LoraLayer

    weights = {}
    for name, module in student.named_modules():
        if isinstance(module, LoraLayer):
            weights[f"{name}.weight"] = module.get_base_layer().weight.detach() + module.get_delta_weight("default")  # pyright: ignore
    return weights


def _plain(value: Any) -> Any:
    """Return the value as JSON can hold it."""
    return sorted(value) if isinstance(value, set) else getattr(value, "value", value)


ENTROPY = Kernel("fla.modules.fused_cross_entropy", "cross_entropy_loss", FLASH_LINEAR_ATTENTION)
SERVED = frozenset({"float32", "bfloat16"})


def next_token_losses(logits: Tensor, targets: Tensor, backend: str = AUTO) -> Tensor:
    """Return -log p(target), N float32, of logits N V. backend: that of the model's heads; auto uses the kernel on a GPU."""
    if why_not_fused(logits, backend) is None:
        try:
            return ENTROPY(logits, targets)[0]
        except Refused as refusal:
            warn_fallback(str(refusal), "In its place: the loss as defined")
    return functional.cross_entropy(logits.float(), targets, reduction="none")


def why_not_fused(logits: Tensor, backend: str) -> str | None:
    """Return why the kernel does not compute the losses of these logits, or None."""
    if backend not in (AUTO, FLA):
        return f"it is a kernel of {FLA}, and the backend is {backend}"
    if backend == AUTO and logits.device.type != "cuda":
        return f"{AUTO} uses it on a GPU only"
    dtype = dtype_name(logits.dtype)
    if dtype not in SERVED:
        return f"it does not serve {dtype}"
    if not logits.shape[0]:
        return "there is no token"
    return ENTROPY.missing() or gpu_obstacle(Setting(device=logits.device.type, dtype=dtype))


def merge_adapters(model: Path, out: Path, *, force: bool = False) -> Record:
    """Write the model of a folder to ``out``, with its adapters folded into the weights. Return its record.

    Raises TrainingError and BuildError.
    """
    loaded = load_model(model, "float32", "cpu")
    if not isinstance(loaded, ComposedForCausalLM) or loaded.config.adapter is None:
        raise TrainingError(f"{model} has no adapters: there is nothing to merge.")
    logs = {name: path for name in (LOG, CURVE) if (path := model / TRAINING / name).is_file()}
    return write_trained(model, out, Trained(fold_adapters(loaded), None, (), logs, loaded), force=force)
