"""The bout of PT2-LLM: the error of a language model's hidden states after its linear layers became ternary."""

from __future__ import annotations

import math
from functools import partial
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
from .contenders import Data, Quantized, absmean, awq_2bit, measured, optq_2bit, optq_ternary, pt2_llm, rtn_2bit, twn
from .experiments import fitting, reordering, size, speed
from .figures import figures

__all__ = ["CLAIMS", "METRICS", "contenders", "figures", "fitting", "load", "reordering", "score", "size", "speed"]

# hidden_err: relative error of the hidden state after the last quantized block, one value per held-out window.
# bits: of the file, per weight of the quantized layers, scales, offsets, order and padding included.
# e_w, e_x: relative squared error of the weights, and of the outputs on the calibration text, mean of layers.
SHAPE = {"num_hidden_layers": 30, "hidden_size": 576, "max_position_embeddings": 8192}
"""Of the default model."""
WINDOW = 128
PARTS = (("ssr",), ("aga",), ("itf",), ("itf", "aga"), ("aga", "ssr"), ("itf", "ssr"), ("itf", "aga", "ssr"))
"""What the ablations leave out."""

METRICS = (
    Metric("hidden_err", "lower", "relative", True, 0.02, (0.0, math.inf), "log"),
    Metric("bits", "lower", "bits", bounds=(0.0, 32.0)),
    Metric("nll", "lower", "nats", bounds=(0.0, math.inf)),
    Metric("kl", "lower", "nats", bounds=(-1e-6, math.inf)),
    Metric("e_w", "lower", "relative", bounds=(0.0, math.inf)),
    Metric("e_x", "lower", "relative", bounds=(0.0, math.inf)),
)


def load(
    *,
    model: Path | None = None,
    text: Path | None = None,
    blocks: str = "2",
    block_size: int = 128,
    samples: int = 32,
    seq_len: int = 256,
    no_ssr: bool = False,
    no_aga: bool = False,
    no_itf: bool = False,
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
    blocks : str
        N first decoder blocks that are quantized, or all.
    block_size : int
        Columns that share a scale and an offset.
    samples : int
        Calibration sequences, drawn by the seed.
    seq_len : int
        Tokens of each.
    no_ssr : bool
        Without the reordering of columns.
    no_aga : bool
        Without the alignment of the grid to activations.
    no_itf : bool
        Without iterative fitting.
    trust_pickle : bool
        Allow a --model of pickled weights; they are still loaded with weights_only.
    quick : bool
        Small budget, for tests.
    """
    _check_options(blocks, block_size, samples, seq_len)
    config = check_model(model, trust_pickle)
    shape = SHAPE if model is None else config
    count = _blocks(blocks, shape)
    _check_shape(block_size, seq_len, shape)
    source = read_text(text)
    lm = tiny_llama() if quick and model is None else load_model(model, trust_pickle)
    samples, seq_len = (32, 128) if quick else (samples, seq_len)
    train, test = split_tokens(lm.tokenizer, source)
    check_tokens(len(train), seq_len + samples, "calibration")
    check_tokens(len(test), WINDOW, "evaluation")
    _check_layers(lm.model, count, 64 if quick else block_size, samples * seq_len)
    return Data(
        model=lm.model,
        tokenizer=lm.tokenizer,
        train=train,
        test=even_windows(test, 8 if quick else 32, WINDOW),
        blocks=count,
        block_size=64 if quick else block_size,
        samples=samples,
        seq_len=seq_len,
        exponents=5 if quick else 21,
        parts={"itf": not no_itf, "aga": not no_aga, "ssr": not no_ssr},
    )


def _check_options(blocks: str, block_size: int, samples: int, seq_len: int) -> None:
    if blocks != "all" and not (blocks.isdecimal() and int(blocks) > 0):
        raise InputError(f"{blocks!r} is not a number of blocks", "--blocks", "give 1 or more, or all")
    for name, value, least in (("block-size", block_size, 8), ("samples", samples, 1), ("seq-len", seq_len, 2)):
        if value < least:
            raise InputError(f"{value} is too small", f"--{name}", f"at least {least}")
    if samples * seq_len < block_size:
        raise InputError(
            f"{samples * seq_len} calibration tokens for blocks of {block_size} columns", "--samples", "give more"
        )


def _blocks(blocks: str, shape: dict[str, Any]) -> int:
    found = shape.get("num_hidden_layers", shape.get("n_layer", 0))
    wanted = found if blocks == "all" else int(blocks)
    if not found:
        raise InputError("config.json names no num_hidden_layers", "--model", "give a causal language model")
    if wanted > found:
        raise InputError(f"{wanted} blocks, the model has {found}", "--blocks", f"at most {found}, or all")
    return int(wanted)


def _check_shape(block_size: int, seq_len: int, shape: dict[str, Any]) -> None:
    """What config.json tells, before anything heavy is imported."""
    width = shape.get("hidden_size", shape.get("n_embd"))
    context = shape.get("max_position_embeddings", shape.get("n_positions"))
    if width is not None and block_size > width:
        raise InputError(f"blocks of {block_size} columns, layers have {width} inputs", "--block-size", "give less")
    if context is not None and max(seq_len, WINDOW) > context:
        raise InputError(f"{max(seq_len, WINDOW)} tokens, the model's context is {context}", "--seq-len", "give less")


def _check_layers(model: Any, blocks: int, block_size: int, tokens: int) -> None:
    from .method import PT2LLM

    try:
        PT2LLM(block_size).check(model, blocks, tokens)
    except ValueError as error:
        raise InputError(
            str(error), "--model", "give a model of Linear or Conv1D layers, or another --block-size"
        ) from error


def contenders(data: Data) -> tuple[Contender, ...]:
    """PT2-LLM, rivals of its size and of 2 bits, what each of its parts adds, and the floor."""
    return (
        Contender("pt2-llm", "paper", pt2_llm, "the smallest form that still works, without training"),
        Contender("OPTQ-ternary", "rival", optq_ternary, "the usual rounding at the same size: groups of 64"),
        Contender("TWN", "rival", twn, "the classic ternary form: a scale a row, no calibration"),
        Contender("absmean", "rival", absmean, "BitNet's rounding, meant for training: why calibration is needed"),
        Contender("OPTQ-2bit", "rival", optq_2bit, "what most use; 13 % more bytes"),
        Contender("AWQ-2bit", "rival", awq_2bit, "popular scaling of columns; 14 % more bytes, with its column scales"),
        *(
            Contender(
                f"no-{'-'.join(parts)}", "rival", partial(pt2_llm, without=parts), f"without {' and '.join(parts)}"
            )
            for parts in PARTS
        ),
        Contender("RTN-2bit", "floor", rtn_2bit, "four levels, to nearest"),
    )


def score(output: Quantized, data: Data) -> dict[str, Any]:
    """Errors on held-out windows, size in the checkpoint, and the errors of every layer."""
    return measured(output, data)
