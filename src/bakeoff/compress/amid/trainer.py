"""AMiD as a Trainer of transformers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers import Trainer

from .method import IGNORED, Divergence, DivergenceName, Order, amid_loss, check_options, check_path

Schedule = str | tuple[str, float, float]


class AMiDTrainer(Trainer):  # type: ignore[misc]  # transformers is half typed
    """A ``transformers.Trainer`` that distils a causal language model into a smaller one with the same tokenizer.

    A batch needs ``input_ids``, ``attention_mask`` where it is padded (on either side), and ``labels`` as transformers
    has them: not shifted, -100 where a position is left out. The loss is the mean over the kept positions of the whole
    accumulated batch, so it does not depend on ``gradient_accumulation_steps``. Under accelerate or FSDP the teacher is
    prepared for evaluation.

    Parameters
    ----------
    model, args, data_collator, train_dataset, eval_dataset, processing_class, model_init, compute_metrics, callbacks, \
optimizers, optimizer_cls_and_kwargs, preprocess_logits_for_metrics
        As in ``transformers.Trainer``. Where the heads differ in size, a tokenizer as `processing_class` tells what is
        padding: logits beyond its size are cut off on both sides.
    teacher : PreTrainedModel
        Put into eval mode and frozen, with a warning if it was not.
    alpha, lam, divergence, order, temperature, chunk, clamp_alpha
        See `amid_loss`.
    kd_ratio : float, default 1.0
        The total is ``(1 - kd_ratio) * cross-entropy + kd_ratio * loss``.
    alpha_schedule : "constant", ("linear", a0, a1) or ("overlap", a0, a1), default "constant"
        How alpha goes from a0 to a1: with the steps; or with the mean of ``sum min(p, q)`` over kept positions, a
        running mean with decay 0.9 that starts at the first batch's value. Both are ours.
    on_policy : float, default 0.0
        Share of training batches whose responses are sampled anew from the student. A response is all that follows the
        first kept label; without a prompt the first token is the prompt. Sampling draws from torch's global
        generator, as training does. The form of it is ours: DistiLLM's adaptive mix, whose share follows the
        validation loss and which samples from a replay buffer, is not here.

    Raises
    ------
    ValueError
        An option out of range, or a batch without labels.
    """

    # compute_loss divides by the count of the whole accumulated batch
    loss_is_scaled_for_ga = True

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        data_collator: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        model_init: Callable[..., Any] | None = None,
        compute_metrics: Callable[..., Any] | None = None,
        callbacks: list[Any] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        optimizer_cls_and_kwargs: tuple[Any, dict[str, Any]] | None = None,
        preprocess_logits_for_metrics: Callable[..., Any] | None = None,
        *,
        teacher: Any,
        alpha: float = 0.5,
        lam: float = 0.1,
        divergence: DivergenceName | Divergence = "kl",
        order: Order = "pr",
        temperature: float = 1.0,
        chunk: int | None = None,
        clamp_alpha: bool = False,
        kd_ratio: float = 1.0,
        alpha_schedule: Schedule = "constant",
        on_policy: float = 0.0,
    ) -> None:
        check_path(alpha, lam)
        check_options(lam, divergence, order, temperature, "mean", chunk)
        _check(kd_ratio, alpha_schedule, on_policy)
        super().__init__(
            model=model,
            args=args,
            data_collator=data_collator,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            model_init=model_init,
            compute_metrics=compute_metrics,
            callbacks=callbacks,
            optimizers=optimizers,
            optimizer_cls_and_kwargs=optimizer_cls_and_kwargs,
            preprocess_logits_for_metrics=preprocess_logits_for_metrics,
        )
        self.alpha, self.lam, self.divergence, self.order = alpha, lam, divergence, order
        self.temperature, self.chunk, self.clamp_alpha = temperature, chunk, clamp_alpha
        self.kd_ratio, self.alpha_schedule, self.on_policy = kd_ratio, alpha_schedule, on_policy
        self.overlap: float | None = None
        self.coin = torch.Generator().manual_seed(self.args.seed)
        # Kept positions are counted for every model, and as labels[:, 1:], because the shift is made here.
        self.model_accepts_loss_kwargs = self._loss_shifts_labels = True
        self.vocabulary = self._vocabulary(teacher)
        self.teacher = self.accelerator.prepare_model(_frozen(teacher), evaluation_mode=True)

    def _vocabulary(self, teacher: Any) -> int | None:
        """The tokenizer's size where both heads have at least so many rows."""
        sizes = [teacher.config.vocab_size, self.model.config.vocab_size]
        try:
            known = len(self.processing_class)
        except TypeError:  # none, or an image processor
            return None
        return known if known <= min(sizes) and sizes[0] != sizes[1] else None

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """The loss of one batch, divided by `num_items_in_batch` (by default its own kept positions)."""
        if "labels" not in inputs:
            raise ValueError("a batch has no labels; use a collator that gives them, with -100 on padding")
        labels = torch.nn.functional.pad(inputs["labels"][:, 1:], (0, 1), value=IGNORED)
        given = {name: value for name, value in inputs.items() if name != "labels"}
        with torch.no_grad():
            teacher_logits = self.teacher(**given).logits[..., : self.vocabulary]
        outputs = model(**given)
        student_logits = outputs.logits[..., : self.vocabulary]
        items = num_items_in_batch
        if isinstance(items, torch.Tensor):
            items = items.reshape(-1)[0]
        loss = self._total(student_logits, teacher_logits, labels, items, model.training)
        if self.args.average_tokens_across_devices and items is not None:
            loss = loss * (self.accelerator.num_processes // self.get_tp_size())
        return (loss, outputs) if return_outputs else loss

    def _total(self, student: torch.Tensor, teacher: Any, labels: Any, items: Any, training: bool) -> torch.Tensor:
        total: torch.Tensor = student[..., :0].sum().float()
        if self.kd_ratio > 0:
            total = total + self.kd_ratio * amid_loss(
                student,
                teacher,
                labels,
                alpha=self._alpha(student, teacher, labels, training),
                lam=self.lam,
                divergence=self.divergence,
                order=self.order,
                temperature=self.temperature,
                num_items=items,
                chunk=self.chunk,
                clamp_alpha=self.clamp_alpha,
            )
        if self.kd_ratio < 1:
            kept = (labels != IGNORED).sum().clamp(min=1) if items is None else items
            losses = torch.nn.functional.cross_entropy(
                student.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED, reduction="sum"
            )
            total = total + (1 - self.kd_ratio) * losses / kept
        return total

    def _alpha(self, student: Any, teacher: Any, labels: Any, training: bool) -> float:
        """Alpha of this step; evaluation leaves the running mean alone."""
        if isinstance(self.alpha_schedule, str):
            return self.alpha
        kind, start, end = self.alpha_schedule
        if kind == "linear":
            done = self.state.global_step / max(1, self.state.max_steps)
            return float(start + (end - start) * done)
        if training or self.overlap is None:
            found = _overlap(student, teacher, labels)
            if found is not None:
                self.overlap = found if self.overlap is None else 0.9 * self.overlap + 0.1 * found
        return start + (end - start) * (self.overlap or 0.0)

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> tuple[list[Any], Any]:
        """The batches of one step, some of them with responses of the student's, and their kept positions."""
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        if self.on_policy == 0:
            return batches, items
        coins = torch.rand(len(batches), generator=self.coin)
        batches = [
            self._respond(batch) if coin < self.on_policy else batch
            for batch, coin in zip(batches, coins.tolist(), strict=True)
        ]
        return batches, self._get_num_items_in_batch(batches, device)

    @torch.no_grad()
    def _respond(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Sample new responses to the prompts of a batch; prompts are padded on the left."""
        batch = self._prepare_inputs(batch)
        ids, mask = batch["input_ids"], batch.get("attention_mask", torch.ones_like(batch["input_ids"]))
        prompts = [_prompt(*row) for row in zip(ids, mask, batch["labels"], strict=True)]
        longest = max(len(prompt) for prompt in prompts)
        pad = _padding(self.model.generation_config, self.model.config)
        left, seen = ids.new_full((len(ids), longest), pad), torch.zeros((len(ids), longest), dtype=torch.long)
        for i, prompt in enumerate(prompts):
            left[i, longest - len(prompt) :], seen[i, longest - len(prompt) :] = prompt, 1
        model = self.accelerator.unwrap_model(self.model_wrapped)
        was_training = model.training
        model.eval()
        new = model.generate(
            input_ids=left,
            attention_mask=seen.to(left.device),
            max_new_tokens=max(1, ids.shape[1] - longest),
            do_sample=True,
            top_k=0,
            pad_token_id=pad,
        )
        model.train(was_training)
        answers = new[:, longest:]
        kept = _until_end(answers, self.model.generation_config.eos_token_id)
        mask = torch.cat([seen.to(kept.device), kept.long()], 1)
        labels = torch.cat([torch.full_like(left, IGNORED), answers.masked_fill(~kept, IGNORED)], 1)
        return {"input_ids": new, "attention_mask": mask, "labels": labels}


def _prompt(ids: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """What comes before the first kept label, without padding; at least the first token."""
    kept = (labels != IGNORED).nonzero()
    end = int(kept[0]) if len(kept) else len(ids)
    before = ids[:end][mask[:end].bool()]
    return before if len(before) else ids[mask.bool()][:1]


def _padding(*configs: Any) -> int:
    for config in configs:
        for value in (config.pad_token_id, config.eos_token_id):
            if value is not None:
                return int(value[0] if isinstance(value, list) else value)
    return 0  # masked everywhere: any token will do


def _until_end(ids: torch.Tensor, ends: int | list[int] | None) -> torch.Tensor:
    """True up to the first end token of each row, it included."""
    if ends is None:
        return torch.ones_like(ids, dtype=torch.bool)
    is_end = torch.isin(ids, torch.as_tensor(ends, device=ids.device))
    return is_end.long().cumsum(1) - is_end.long() == 0


@torch.no_grad()
def _overlap(student: torch.Tensor, teacher: torch.Tensor, labels: torch.Tensor) -> float | None:
    """Mean of ``sum min(p, q)`` over kept positions, sequence by sequence; None where there are none."""
    total, count = 0.0, 0
    size = min(student.shape[-1], teacher.shape[-1])
    for q, p, label in zip(student[..., :size], teacher[..., :size], labels, strict=True):
        keep = label != IGNORED
        total += float(torch.minimum(p[keep].float().softmax(-1), q[keep].float().softmax(-1)).sum())
        count += int(keep.sum())
    return total / count if count else None


def _frozen(teacher: Any) -> Any:
    if teacher.training or any(parameter.requires_grad for parameter in teacher.parameters()):
        warnings.warn("the teacher was not frozen: put into eval mode, without gradients", stacklevel=3)
    return teacher.eval().requires_grad_(False)


def _check(kd_ratio: float, schedule: Any, on_policy: float) -> None:
    for name, value in (("kd_ratio", kd_ratio), ("on_policy", on_policy)):
        if not 0 <= value <= 1:
            raise ValueError(f"{name}={value} is outside [0, 1]")
    known = schedule == "constant" or (
        isinstance(schedule, tuple) and len(schedule) == 3 and schedule[0] in ("linear", "overlap")
    )
    if not known:
        raise ValueError(f'alpha_schedule={schedule!r}; use "constant", ("linear", a0, a1) or ("overlap", a0, a1)')
    if schedule != "constant" and not all(math.isfinite(value) for value in schedule[1:]):
        raise ValueError(f"alpha_schedule={schedule!r} has an alpha that is not finite")
