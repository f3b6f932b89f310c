"""The bout of AMiD: a large language model is distilled into a small one, six trials for every loss."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from bakeoff.arena.types import Contender, InputError, Metric
from bakeoff.inputs.language import LanguageModel, check_model, load_model, tiny_llama

from .claims import CLAIMS
from .corpus import make_corpus, read_source
from .experiments import scan, stability, steering
from .figures import figures
from .rivals import abkd, amid, cross_entropy, forward_kl, generalized_jsd, reverse_kl, skewed_kl, taid
from .training import RATES, TRIALS, Data, Student, compare, distilled, floor, rouge_l

__all__ = ["CLAIMS", "METRICS", "contenders", "figures", "load", "scan", "score", "stability", "steering"]

# overlap: sum over the vocabulary of min(teacher, student), 1 minus their total variation, and the rate at which the
# teacher accepts the student's drafts in speculative decoding. It favours neither direction of KL.
# Each seed counts once, by its mean over the test windows, where the specification paired window by window: what the
# seed draws (weights and batches) moves a student's overlap more than the choice of windows does, and all windows of a
# seed at once. Pairs of windows would count that one draw 40 times over, and call differences found that are none.
METRICS = (
    Metric("overlap", "higher", "share", True, 0.005, (0.0, 1.0)),
    Metric("nll", "lower", "nats", bounds=(0.0, math.inf)),
    Metric("kl_teacher_student", "lower", "nats", bounds=(-1e-5, math.inf)),  # rounding of float32
    Metric("kl_student_teacher", "lower", "nats", bounds=(-1e-5, math.inf)),
    Metric("top1", "higher", "share", bounds=(0.0, 1.0)),
    Metric("rouge_l", "higher", "F1", bounds=(0.0, 1.0)),
)

DivergenceName = Literal["kl", "ab"]


def load(
    *,
    model: Path | None = None,
    student: str | None = None,
    text: Path | None = None,
    alphas: str = "-1,0,0.5",
    lam: float = 0.1,
    divergence: DivergenceName = "kl",
    steps: int = 150,
    trust_pickle: bool = False,
    quick: bool = False,
) -> Data:
    """Check the options, load teacher and student, and cut the text into training, validation and test.

    Parameters
    ----------
    model : Path
        DIR of the teacher, a transformers checkpoint; by default a Llama of 0.9 M parameters, trained once.
    student : str
        DIR of a checkpoint with the teacher's tokenizer, or layers:N for its first N layers (layers:8 with --model); by
        default a fresh Llama of 0.1 M parameters.
    text : Path
        FILE, UTF-8 .txt or .jsonl with the field text, or with prompt and response (only responses are learnt); by
        default the help topics of Python.
    alphas : str
        AMiD's alphas, chosen on validation: 1, 2, 3 or 6 numbers, as --alphas=-1,0,0.5.
    lam : float
        Weight of the teacher in the mixture, in [0, 1).
    divergence : {"kl", "ab"}
        NAME of AMiD's divergence; ab is the alpha-beta divergence with the exponents of the authors' code.
    steps : int
        Training steps of a trial: 8 windows of 64 tokens, or with --model 4 of 128.
    trust_pickle : bool
        Allow a --model or --student of pickled weights; they are still loaded with weights_only.
    quick : bool
        Small budget, for tests.
    """
    values = _check_options(alphas, lam, divergence, steps)
    config = check_model(model, trust_pickle)
    wanted = student or ("layers:8" if model else None)
    layers = _layers(wanted, config)
    if wanted and layers is None:
        check_model(Path(wanted), trust_pickle, "--student")
    source = read_source(text)
    teacher = tiny_llama() if model is None else load_model(model, trust_pickle)
    start, vocabulary = _student(wanted, layers, teacher, trust_pickle)
    return Data(
        teacher=teacher.model,
        tokenizer=teacher.tokenizer,
        start=start,
        corpus=make_corpus(source, teacher.tokenizer, quick),
        vocabulary=vocabulary,
        alphas=values,
        lam=lam,
        divergence=divergence,
        steps=min(steps, 10) if quick else steps,
        batch=4 if model or quick else 8,
        length=32 if quick else 128 if model else 64,
        trials=1 if quick else TRIALS,
        rouge=2 if quick else 40,
    )


def _check_options(alphas: str, lam: float, divergence: str, steps: int) -> tuple[float, ...]:
    try:
        values = tuple(float(word) for word in alphas.split(","))
    except ValueError:
        raise InputError(f"{alphas!r} is not a list of numbers", "--alphas", "as --alphas=-1,0,0.5") from None
    if bad := [value for value in values if not math.isfinite(value)]:
        raise InputError(f"alpha={bad[0]} is not finite", "--alphas", "give numbers")
    if len(values) not in RATES:
        raise InputError(f"{len(values)} alphas do not share {TRIALS} trials", "--alphas", "give 1, 2, 3 or 6")
    if not 0 <= lam <= 1:
        raise InputError(f"lam={lam} is outside [0, 1]", "--lam", "0.1 is usual")
    if lam == 1:
        raise InputError('no gradient: lam=1 with order "pr"', "--lam", "less than 1")
    if divergence not in get_args(DivergenceName):
        raise InputError(f"{divergence!r} is not known", "--divergence", "choose kl or ab")
    if steps < 1:
        raise InputError(f"{steps} is too small", "--steps", "at least 1")
    return values


def _layers(wanted: str | None, config: dict[str, Any]) -> int | None:
    """N of layers:N, checked against the teacher's config (that of the tiny Llama where it is empty)."""
    if wanted is None or not wanted.startswith("layers:"):
        return None
    found = config.get("num_hidden_layers", 0) if config else 4
    number = wanted.removeprefix("layers:")
    if not number.isdecimal() or not 1 <= int(number) <= found:
        raise InputError(f"{wanted} of a teacher with {found} layers", "--student", f"layers:1 to layers:{found}")
    return int(number)


def _student(wanted: str | None, layers: int | None, teacher: LanguageModel, trust_pickle: bool) -> tuple[Any, int]:
    """The student before training, None for a fresh one, and the size of the common vocabulary."""
    from .students import common_vocabulary, first_layers

    if wanted is None:
        return None, teacher.model.config.vocab_size
    if layers is not None:
        return first_layers(teacher.model, layers), teacher.model.config.vocab_size
    found = load_model(Path(wanted), trust_pickle, "--student")
    return found.model, common_vocabulary(teacher, found)


def contenders(data: Data) -> tuple[Contender, ...]:
    """AMiD, its relatives, what people start with, and the floor; six trials each."""
    mixture = partial(amid, lam=data.lam, divergence=data.divergence)
    mixtures = partial(distilled, make=mixture, grid=tuple({"alpha": a} for a in data.alphas))
    skews = partial(distilled, make=skewed_kl, grid=({"skew": 0.1}, {"skew": 0.3}, {"skew": 0.5}))
    jsd = partial(distilled, make=generalized_jsd, grid=({"beta": 0.1}, {"beta": 0.5}, {"beta": 0.9}))
    path = partial(distilled, make=taid, grid=({"start": 0.0}, {"start": 0.2}, {"start": 0.4}))
    exponents = ({"x": 0.2, "y": 0.7}, {"x": 0.5, "y": 0.5}, {"x": 0.7, "y": 0.2})
    plain: tuple[dict[str, float], ...] = ({},)
    return (
        Contender("amid", "paper", mixtures, "one family of losses, alpha chosen on validation text"),
        Contender("forward-KL", "rival", partial(distilled, make=forward_kl, grid=plain), "where most people start"),
        Contender("reverse-KL", "rival", partial(distilled, make=reverse_kl, grid=plain), "mode seeking, no mixture"),
        Contender("CE", "rival", partial(distilled, make=cross_entropy, grid=plain), "fine-tuning without the teacher"),
        Contender("DistiLLM", "rival", skews, "skewed forward KL: AMiD's member alpha = -1, skew tuned"),
        Contender("GKD", "rival", jsd, "generalized Jensen-Shannon divergence, beta tuned"),
        Contender("TAID", "rival", path, "geometric path to the teacher during training, start tuned"),
        Contender("ABKD", "rival", partial(distilled, make=abkd, grid=exponents), "alpha-beta divergence, tuned"),
        Contender("untrained", "floor", floor, "the student before training"),
    )


def score(output: Student, data: Data) -> dict[str, Any]:
    """Means over the test windows; the trials of the contender go along for the figures.

    One number a metric, not one a window as in the specification, so that contenders are paired by seed: the noise
    between seeds is larger than that between windows, and common to all windows of a seed.
    """
    each = compare(data, output.model, data.corpus.test) | {"rouge_l": rouge_l(data, output.model)}
    means = {name: float(values.mean()) for name, values in each.items()}
    return {**means, "setting": output.setting, "trials": output.trials}
