"""The bout of Qronos: the error of a language model's hidden states after its first blocks were quantized."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

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

from .claims import CLAIMS
from .contenders import Data, Quantized, awq, gpfq, gptaq, measured, optq, qronos, rtn
from .experiments import activations, digits, memory, mismatch, speed, transforms
from .figures import figures
from .options import SHAPE, TransformName, check_options, check_shape

__all__ = [
    "CLAIMS",
    "METRICS",
    "activations",
    "contenders",
    "digits",
    "figures",
    "load",
    "memory",
    "mismatch",
    "score",
    "speed",
    "transforms",
]

# hidden_err: relative error of the hidden states after the last quantized block, one value per held-out window.
# calibration_err: the same on the calibration text; a method that fits that text is far lower here.
# kl: of the whole model to the float model.
METRICS = (
    Metric("hidden_err", "lower", "relative", True, 0.02, (0.0, math.inf), "log"),
    Metric("calibration_err", "lower", "relative", bounds=(0.0, math.inf)),
    Metric("nll", "lower", "nats", bounds=(0.0, math.inf)),
    Metric("kl", "lower", "nats", bounds=(0.0, math.inf)),
)

WINDOW = 128


def load(
    *,
    model: Path | None = None,
    text: Path | None = None,
    bits: float = 3,
    asymmetric: bool = False,
    group_size: int = 0,
    blocks: str = "2",
    act_bits: int = 0,
    kv_bits: int = 0,
    transform: TransformName = "none",
    damp: str = "0.01",
    samples: int = 128,
    seq_len: int = 256,
    trust_pickle: bool = False,
    quick: bool = False,
) -> Data:
    """Check the options, load the model, and cut the text into calibration (first 90 %) and evaluation (last 10 %).

    Parameters
    ----------
    model : Path
        DIR of a transformers checkpoint; SmolLM2-135M-Instruct by default.
    text : Path
        FILE, UTF-8 .txt or .jsonl with the field text; the help topics of Python by default.
    bits : float
        X of the weights: 1.58 (ternary), 2, 3, 4, 5, 6 or 8.
    asymmetric : bool
        Grids with a zero point; by default they are symmetric.
    group_size : int
        N columns that share a scale; 0: whole rows.
    blocks : str
        N first decoder blocks that are quantized, or all.
    act_bits : int
        N bits of activations, per token; 0: float.
    kv_bits : int
        N bits of keys and values, per token and head; 0: float.
    transform : {"none", "hadamard", "equalize"}
        NAME of a rewrite of the weights before rounding, for all contenders.
    damp : str
        X, share of the mean of H's diagonal that is added to it; sigma: the paper's, 1e-6 of the largest eigenvalue.
    samples : int
        N calibration sequences, drawn by the seed.
    seq_len : int
        Tokens of each.
    trust_pickle : bool
        Allow a --model of pickled weights; they are still loaded with weights_only.
    quick : bool
        Small budget, for tests.
    """
    share = check_options(bits, group_size, act_bits, kv_bits, transform, damp, samples, seq_len)
    config = check_model(model, trust_pickle)
    shape = SHAPE if model is None else config
    count = check_shape(shape, blocks, group_size, samples, seq_len)
    if model is None and (bits, group_size) == (4, 32):
        raise InputError(
            "the default model's weights lie on a 4-bit grid in groups of 32, rounding to it would be exact",
            "--group-size",
            "take another size, --bits 3, or give --model DIR",
        )
    source = read_text(text)
    tiny = quick and model is None
    lm = tiny_llama() if tiny else load_model(model, trust_pickle)
    train, test = split_tokens(lm.tokenizer, source)
    samples, seq_len = (32, 128) if quick else (samples, seq_len)
    check_tokens(len(train), seq_len + samples, "calibration")
    check_tokens(len(test), WINDOW, "evaluation")
    return Data(
        model=lm.model,
        tokenizer=lm.tokenizer,
        train=train,
        windows=even_windows(test, 8 if quick else 32, WINDOW),
        few=even_windows(test, 4 if quick else 16, WINDOW),
        blocks=4 if tiny else count,
        bits=2 if tiny else bits,
        symmetric=not (asymmetric or tiny),
        group_size=group_size or None,
        act_bits=act_bits or None,
        kv_bits=kv_bits or None,
        transform=transform,
        damp=share,
        samples=samples,
        seq_len=seq_len,
        exponents=5 if quick else 21,
    )


def contenders(data: Data) -> tuple[Contender, ...]:
    """Qronos, its rivals and the floor."""
    return (
        Contender("qronos", "paper", qronos, "corrects what earlier layers got wrong"),
        Contender("OPTQ", "rival", optq, "GPTQ, what most users run"),
        Contender("GPTAQ", "rival", gptaq, "the closest: also looks at the float model"),
        Contender("GPFQ", "rival", gpfq, "error correction without spreading it ahead"),
        Contender("AWQ", "rival", awq, "scales strong columns up, no rounding decisions"),
        Contender("RTN", "floor", rtn, "round to nearest, no calibration"),
    )


def score(output: Quantized, data: Data) -> dict[str, Any]:
    """See `METRICS`."""
    return measured(output, data)
