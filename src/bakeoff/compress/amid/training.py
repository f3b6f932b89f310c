"""Training and scoring of students; every loss goes through the same loop with the same six trials."""

from __future__ import annotations

import copy
import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bakeoff.inputs.language import random_windows

from .corpus import Corpus, Tokens
from .rivals import Loss

if TYPE_CHECKING:
    import torch

FloatArray = npt.NDArray[np.float64]

TRIALS = 6
RATES = {1: (1e-3, 2e-3, 3e-3, 5e-3, 1e-2, 2e-2), 2: (2e-3, 5e-3, 1e-2), 3: (3e-3, 1e-2), 6: (3e-3,)}
"""Learning rates by the number of settings of a loss: always six trials."""
PRETRAINED = 0.1
"""Factor on the rates for a student that is not fresh."""
WARMUP, LAST_RATE, DECAY, CLIP = 10, 0.05, 0.01, 1.0
JUDGED = 4
"""Windows that are scored at a time."""
CACHED = 15 * 10**7
"""Teacher logits are kept over the trials up to so many float32 numbers (0.6 GB), and computed anew beyond."""

FRESH: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "tie_word_embeddings": True,
    "max_position_embeddings": 2048,
}


@dataclass(frozen=True)
class Data:
    """What all contenders share.

    Parameters
    ----------
    teacher, tokenizer : object
    start : object or None
        Student before training; None for a fresh one, drawn from the seed.
    corpus : Corpus
    vocabulary : int
        Logits beyond it are padding.
    alphas, lam, divergence
        Of AMiD.
    steps, batch, length : int
        Of training.
    trials : int
    rouge : int
        Test windows that are continued greedily.
    """

    teacher: Any
    tokenizer: Any
    start: Any
    corpus: Corpus
    vocabulary: int
    alphas: tuple[float, ...]
    lam: float
    divergence: str
    steps: int
    batch: int
    length: int
    trials: int = TRIALS
    rouge: int = 40


@dataclass
class Student:
    """A student, how it came about, and the means to write it down."""

    model: Any
    tokenizer: Any
    setting: dict[str, float] = field(default_factory=dict)
    trials: list[dict[str, float]] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Of the weights."""
        return sum(p.numel() * p.element_size() for p in self.model.parameters())

    def save(self, folder: Path) -> None:
        """Write a checkpoint that ``from_pretrained`` loads, with the tokenizer."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def distilled(data: Data, seed: int, *, make: Callable[..., Loss], grid: tuple[dict[str, Any], ...]) -> Student:
    """Train once for each setting and rate; the student with the largest validation overlap is kept.

    Parameters
    ----------
    data : Data
    seed : int
        Initial weights and batches.
    make : callable
        Maker of the loss, called anew for each trial.
    grid : tuple of dict
        Settings of the loss: 1, 2, 3 or 6 of them.
    """
    batches = training_batches(data, seed)
    logits = teacher_logits(data, batches)
    validation = data.corpus.validation
    judge = teacher_logits(data, in_batches(validation))
    factor = 1.0 if data.start is None else PRETRAINED
    wanted = list(itertools.product(grid, RATES[len(grid)]))[: data.trials]
    kept, told = None, []
    for setting, rate in wanted:
        model = untrained(data, seed)
        trace = train(model, make(**setting), rate * factor, batches, logits, data.vocabulary)
        named = {name: value for name, value in setting.items() if isinstance(value, float)}
        overlap = float(compare(data, model, validation, judge)["overlap"].mean())
        told.append({**named, "rate": rate * factor, "validation": overlap, **trace})
        if kept is None or overlap > max(row["validation"] for row in told[:-1]):
            kept = Student(model, data.tokenizer, {**named, "rate": rate * factor})
    assert kept is not None
    kept.trials = told
    return kept


def floor(data: Data, seed: int) -> Student:
    """The student as it starts."""
    return Student(untrained(data, seed), data.tokenizer)


def untrained(data: Data, seed: int) -> Any:
    """A student before training: drawn from the seed, or a copy of the given one."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    if data.start is not None:
        return copy.deepcopy(data.start)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(LlamaConfig(**FRESH, vocab_size=data.vocabulary))


def training_batches(data: Data, seed: int) -> list[Tokens]:
    """Random windows of the training stream, (batch, length) for each step."""
    import torch

    count = data.steps * data.batch
    ids, keep = (random_windows(part, count, data.length, seed) for part in data.corpus.train)
    return [Tokens(*parts) for parts in zip(torch.split(ids, data.batch), torch.split(keep, data.batch), strict=True)]


def in_batches(windows: Tokens) -> list[Tokens]:
    """Windows in order, some at a time."""
    import torch

    return [Tokens(*parts) for parts in zip(*(torch.split(part, JUDGED) for part in windows), strict=True)]


def teacher_logits(data: Data, batches: list[Tokens]) -> Callable[[int], torch.Tensor]:
    """Number of a batch to teacher logits (batch, length - 1, V)."""
    import torch

    def ask(step: int) -> torch.Tensor:
        with torch.no_grad():
            logits: torch.Tensor = data.teacher(input_ids=batches[step].ids).logits[:, :-1, : data.vocabulary]
        return logits

    if sum(batch.ids.numel() for batch in batches) * data.vocabulary > CACHED:
        return ask
    return [ask(step) for step in range(len(batches))].__getitem__


def train(
    model: Any,
    loss: Loss,
    rate: float,
    batches: list[Tokens],
    logits: Callable[[int], torch.Tensor],
    vocabulary: int,
) -> dict[str, float]:
    """AdamW with warm-up and cosine; gives the median gradient norm and the seconds of a step."""
    import torch

    model.train().requires_grad_(True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, len(batches)))
    norms, begun = [], time.perf_counter()
    for step, (ids, keep) in enumerate(batches):
        kept = keep[:, 1:]
        if not kept.any():
            continue
        student = model(input_ids=ids).logits[:, :-1, :vocabulary]
        value = loss(student[kept], logits(step)[kept], ids[:, 1:][kept], step / len(batches))
        optimizer.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
        optimizer.step()
        schedule.step()
    model.eval().requires_grad_(False)
    seconds = (time.perf_counter() - begun) / len(batches)
    return {"gradient_norm": float(np.median(norms)) if norms else 0.0, "seconds_a_step": seconds}


def _rate(step: int, steps: int) -> float:
    """Linear over the first steps, then a cosine down to a twentieth."""
    warm = min(WARMUP, steps // 2)
    if step < warm:
        return (step + 1) / warm
    done = (step - warm) / max(1, steps - warm)
    return LAST_RATE + (1 - LAST_RATE) * 0.5 * (1 + math.cos(math.pi * done))


def compare(
    data: Data, model: Any, windows: Tokens, teacher: Callable[[int], torch.Tensor] | None = None
) -> dict[str, FloatArray]:
    """Student and teacher on windows: for each window the means over its scored positions.

    Parameters
    ----------
    data : Data
    model : object
    windows : Tokens
    teacher : callable, optional
        `teacher_logits` of ``in_batches(windows)``, where many students are compared on the same windows.
    """
    import torch

    batches = in_batches(windows)
    ask = teacher or teacher_logits(data, batches)
    rows: list[dict[str, float]] = []
    for i, (ids, keep) in enumerate(batches):
        with torch.no_grad():
            student = model(input_ids=ids).logits[:, :-1, : data.vocabulary]
        for p, q, kept, targets in zip(ask(i), student, keep[:, 1:], ids[:, 1:], strict=True):
            rows.append(_distances(p[kept], q[kept], targets[kept]))
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def _distances(teacher: torch.Tensor, student: torch.Tensor, targets: torch.Tensor) -> dict[str, float]:
    """Of two logits (n, V), as means over n."""
    import torch

    log_p, log_q = (logits.float().log_softmax(-1) for logits in (teacher, student))
    p, q, ratio = log_p.exp(), log_q.exp(), log_p - log_q
    found = {
        "overlap": torch.minimum(p, q).sum(-1).clamp(max=1),  # rounding
        "nll": -log_q.gather(1, targets[:, None]).squeeze(1),
        "kl_teacher_student": (p * ratio).sum(-1),
        "kl_student_teacher": -(q * ratio).sum(-1),
        "top1": (p.argmax(-1) == q.argmax(-1)).float(),
    }
    return {name: float(values.double().mean()) for name, values in found.items()}


def rouge_l(data: Data, model: Any) -> FloatArray:
    """ROUGE-L F1, on tokens, of greedy continuations of the first half of test windows against their second half."""
    import torch

    ids = data.corpus.test.ids[: data.rouge]
    half = ids.shape[1] // 2
    with torch.no_grad():
        made = model.generate(
            input_ids=ids[:, :half],
            attention_mask=torch.ones_like(ids[:, :half]),
            max_new_tokens=half,
            do_sample=False,
            pad_token_id=0 if data.tokenizer.pad_token_id is None else data.tokenizer.pad_token_id,
        )[:, half:]
    lines = zip(made.tolist(), ids[:, half:].tolist(), strict=True)
    return np.array([2 * _common(a, b) / (len(a) + len(b)) for a, b in lines])


def _common(a: list[int], b: list[int]) -> int:
    """Length of the longest common subsequence."""
    row = [0] * (len(b) + 1)
    for x in a:
        before = row[:]
        for j, y in enumerate(b, 1):
            row[j] = before[j - 1] + 1 if x == y else max(before[j], row[j - 1])
    return row[-1]
