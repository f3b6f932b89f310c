"""The fasa bout: 64 tokens to read at each decode step; who picks those that keep the text likely?"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bakeoff.arena.types import Contender, InputError, Metric
from bakeoff.inputs.language import (
    check_model,
    check_tokens,
    even_windows,
    load_model,
    read_text,
    split_tokens,
    tiny_llama,
)

from .claims import CLAIMS as CLAIMS
from .experiments import check_agreement as check_agreement
from .experiments import check_invariance as check_invariance
from .experiments import check_order as check_order
from .experiments import check_planes as check_planes
from .experiments import check_retrieval as check_retrieval
from .experiments import check_speed as check_speed
from .figures import figures as figures
from .rivals import (
    Data,
    Outcome,
    agreement,
    by_budget,
    decode_times,
    fasa,
    fasa_random,
    full,
    h2o,
    oracle,
    quest,
    randomly,
    snapkv,
    sparq,
    streaming,
)

if TYPE_CHECKING:
    from .planes import Rotary

METRICS = (
    Metric("nll", "lower", "nats a token", primary=True, margin=0.01, bounds=(0, float("inf"))),
    Metric("overlap", "higher", "share of the true top", bounds=(0, 1)),
    Metric("mass", "higher", "softmax mass read", bounds=(0, 1)),
    Metric("key_read", "lower", "share of the keys read to choose", bounds=(0, 1)),
)


def load(
    *,
    model: Path | None = None,
    text: Path | None = None,
    seq_len: int = 512,
    budget: int = 64,
    n_tip: int | None = None,
    keep_sink: int = 4,
    keep_recent: int = 8,
    full_layers: int = 0,
    windows: int = 32,
    trust_pickle: bool = False,
    quick: bool = False,
) -> Data:
    """A language model with rotary positions, and windows of text: half prompt, half decoded with a budget.

    Parameters
    ----------
    model : Path
        DIR of a causal language model (safetensors); SmolLM2-135M-Instruct where there is none.
    text : Path
        FILE, UTF-8 .txt or .jsonl with a field text; the help topics of Python where there is none.
    seq_len : int
        N tokens of a window.
    budget : int
        N tokens that a head may read at a decode step.
    n_tip : int
        N planes that FASA reads of every head; an eighth of the head size by default, a quarter of the planes.
    keep_sink : int
        N first tokens that every contender reads, within the budget.
    keep_recent : int
        N last tokens that every contender reads, within the budget.
    full_layers : int
        N first layers with full attention, for every contender.
    windows : int
        N windows, evenly spaced in the last 10 % of the text.
    trust_pickle : bool
        Accept pickled weights in --model.
    quick : bool
        Small budget, for tests.
    """
    if quick:
        seq_len, budget, windows = min(seq_len, 256), min(budget, 32), min(windows, 3)
    _check_numbers(seq_len, budget, n_tip, keep_sink, keep_recent, full_layers, windows)
    _check_config(check_model(model, trust_pickle), seq_len)
    words = read_text(text)
    language = tiny_llama() if quick and model is None else load_model(model, trust_pickle)
    rotary = _checked_rotary(language.model, n_tip, full_layers)
    train, test = split_tokens(language.tokenizer, words)
    check_tokens(len(train), seq_len, "the calibration sample (the first 90 %)")
    check_tokens(len(test), seq_len + windows, f"{windows} windows of {seq_len} (the last 10 %)")
    from .simulate import Budget

    allowance = Budget(budget, keep_sink, keep_recent, full_layers)
    n_tip = n_tip or max(rotary.head_dim // 8, 1)
    return Data(language, rotary, train, even_windows(test, windows, seq_len + 1), allowance, n_tip, quick)


def _check_numbers(
    seq_len: int, budget: int, n_tip: int | None, sink: int, recent: int, full_layers: int, windows: int
) -> None:
    for name, value, least in (
        ("seq-len", seq_len, 64),
        ("budget", budget, 1),
        ("n-tip", 1 if n_tip is None else n_tip, 1),
        ("keep-sink", sink, 0),
        ("keep-recent", recent, 0),
        ("full-layers", full_layers, 0),
        ("windows", windows, 1),
    ):
        if value < least:
            raise InputError(f"{value} is too small", f"--{name}", f"at least {least}")
    if budget > seq_len:
        raise InputError(f"{budget} tokens of a window of {seq_len}", "--budget", "give less, or a longer --seq-len")
    if sink + max(recent, 1) > budget:
        what = f"--keep-sink {sink} and --keep-recent {recent} (at least the current token) exceed {budget} tokens"
        raise InputError(what, "--budget", "read more, or force fewer")


def _check_config(config: dict[str, Any], seq_len: int) -> None:
    """What config.json tells without a library; the default model is known."""
    longest = config.get("max_position_embeddings") or config.get("n_positions") or 8192
    if seq_len > longest:
        raise InputError(
            f"{seq_len} tokens; the model's longest context is {longest}", "--seq-len", "give a shorter one"
        )


def _checked_rotary(model: Any, n_tip: int | None, full_layers: int) -> Rotary:
    from .planes import rotary_of

    try:
        rotary = rotary_of(model)
    except ValueError as error:
        raise InputError(str(error), "--model", "FASA does not apply to it") from error
    if (n_tip or 1) > rotary.planes:
        raise InputError(f"{n_tip} of the {rotary.planes} planes of a head", "--n-tip", f"1 to {rotary.planes}")
    if full_layers >= rotary.layers:
        raise InputError(f"{full_layers} of {rotary.layers} layers", "--full-layers", "leave one that is sparse")
    return rotary


def contenders(data: Data) -> tuple[Contender, ...]:
    """FASA, what reads as much, what drops tokens for good, the ceilings and the floor; equal tokens for all."""
    return (
        Contender("fasa", "paper", fasa, "long contexts, nothing dropped, a short calibration"),
        Contender("SparQ", "rival", sparq, "reads as much as FASA and needs no calibration"),
        Contender("Quest-8", "rival", partial(quest, page=8), "pages of 8: reads as much as FASA"),
        Contender("Quest-16", "rival", partial(quest, page=16), "pages of 16, its published setting"),
        Contender("StreamingLLM", "rival", streaming, "sinks and last tokens: the simplest"),
        Contender("SnapKV", "rival", snapkv, "compresses the prompt once"),
        Contender("H2O", "rival", h2o, "keeps what got most attention so far"),
        Contender("full", "rival", full, "ceiling, not a choice: reads everything"),
        Contender("oracle", "rival", oracle, "ceiling, not a choice: the true top tokens"),
        Contender("fasa-random", "rival", fasa_random, "control: FASA with planes at random"),
        Contender("random", "floor", randomly, "tokens at random"),
    )


def score(output: Outcome, data: Data) -> dict[str, Any]:
    """Per window; for the figures the likelihood at other budgets, the agreement of planes, and times of a step."""
    result = {"nll": output.nll, "overlap": output.overlap, "mass": output.mass, "key_read": output.key_read}
    if output.in_figure:
        result["by_budget"] = by_budget(output, data)
    if output.calibration is not None:
        result |= agreement(output.calibration) | {"decode": decode_times(data)}
    return result
