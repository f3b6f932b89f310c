"""What the paper claims, and the number that must come out here; thresholds are those of the specification.

The thresholds of `digits` were measured with scales of the full range, and the check uses these. With scales of least
squared error, the default elsewhere, Qronos has no lead over OPTQ in 2 bits on that classifier (symmetric 1.04,
asymmetric .87, 4 seeds); in 3 bits it has (.54).
"""

from __future__ import annotations

from bakeoff.arena.types import Claim

_BOUT = "SmolLM2-135M, first 2 of 30 blocks, 3 bits, 32,768 calibration tokens, 32 held-out windows"
_DIGITS = "absmax scales, digits classifier 64-96-96-96-10, 1,200 calibration rows, logit error on 597 others, 4 seeds"
_TINY = "tiny Llama of 0.9 M parameters, all 4 blocks, 16,384 calibration tokens, 32 held-out windows, 3 seeds"
_NOISE = "one 8 x 24 layer in 3 bits, quantized inputs = inputs + noise, 30 trials"
_TABLE = "abstract and main tables"


def _beats(rival: str) -> Claim:
    return Claim(
        f"better than {rival} at 4 bits or fewer",
        f"hidden error at least 2 % below that of {rival}: {_BOUT}",
        _TABLE,
        metric="hidden_err",
        contender="qronos",
        rival=rival,
        margin=0.02,
    )


def _most(text: str, expect: str, where: str, check: str, metric: str, most: float, seeds: int) -> Claim:
    return Claim(text, expect, where, metric=metric, margin=most, check=check, better="lower", seeds=seeds)


CLAIMS = (
    *map(_beats, ("RTN", "OPTQ", "GPFQ", "GPTAQ", "AWQ")),
    _most(
        "better than OPTQ at 2 bits, plenty of calibration",
        f"logit error at most .75 of OPTQ's, three levels: {_DIGITS}",
        _TABLE,
        "digits",
        "w2a16",
        0.75,
        4,
    ),
    _most(
        "better than OPTQ at 3 bits, plenty of calibration",
        f"logit error at most .75 of OPTQ's: {_DIGITS}",
        _TABLE,
        "digits",
        "w3a16",
        0.75,
        4,
    ),
    _most(
        "no worse than OPTQ at 4 bits",
        f"logit error at most 1.01 of OPTQ's: {_DIGITS}",
        _TABLE,
        "digits",
        "w4a16",
        1.01,
        4,
    ),
    _most(
        "also with 3-bit weights and activations of 4 bits",
        f"logit error below OPTQ's: {_DIGITS}",
        "W4A4KV4 table",
        "digits",
        "w3a4",
        1.0,
        4,
    ),
    _most(
        "also with weights and activations of 4 bits",
        f"logit error below OPTQ's: {_DIGITS}",
        "W4A4KV4 table",
        "digits",
        "w4a4",
        1.0,
        4,
    ),
    Claim(
        "lower perplexity than OPTQ and GPTAQ: Llama3-8B in 1.58 bits 18.0 against 43.3 and 35.3",
        "perplexity of whole models of 1 B parameters and more on WikiText2",
        _TABLE,
        status="not decidable here",
        command="bakeoff run qronos --model DIR --text FILE --bits 1.58 --blocks all --seq-len 2048",
    ),
    Claim(
        "the gain comes from the mismatch of the two models: none, no gain",
        f"without mismatch every weight is OPTQ's of the same damping: {_NOISE}",
        "Theorem 3.1",
        metric="same_as_optq",
        margin=1.0,
        check="mismatch",
        seeds=6,
    ),
    _most(
        "the gain comes from the mismatch of the two models: noise .3",
        f"error below that of RTN, OPTQ, GPFQ and GPTAQ: {_NOISE}",
        "method",
        "mismatch",
        "over_best_0.3",
        1.0,
        6,
    ),
    _most(
        "the gain comes from the mismatch of the two models: noise .6",
        f"error below that of RTN, OPTQ, GPFQ and GPTAQ: {_NOISE}",
        "method",
        "mismatch",
        "over_best_0.6",
        1.0,
        6,
    ),
    Claim(
        "GPTAQ never corrects a column for its own mismatch",
        f"GPTAQ's error at least .95 of OPTQ's at noise .3: {_NOISE}",
        "related work",
        metric="gptaq_over_optq_0.3",
        margin=0.95,
        check="mismatch",
        seeds=6,
    ),
    Claim(
        "the equivalent form is faster (13.8 times for a layer)",
        "at least 10 times faster than the definition: one row, 256 inputs, 2,048 tokens, float64",
        "section 3",
        metric="times_faster",
        margin=10.0,
        check="speed",
        seeds=3,
    ),
    Claim(
        "the equivalent form needs 18 times less memory",
        "inputs of both models over H and G is tokens / inputs: 128 x 2,048 / 14,336",
        "section 3",
        metric="times_smaller",
        margin=18.0,
        check="memory",
        status="by design",
    ),
    _most(
        "also with activations of 8 bits and a KV cache of 4",
        f"hidden error below OPTQ's, 4-bit weights: {_TINY}",
        "W4A4KV4 table",
        "activations",
        "w4a8kv4",
        1.0,
        3,
    ),
    _most(
        "also with activations and KV cache of 4 bits",
        f"hidden error below OPTQ's, 4-bit weights: {_TINY}",
        "W4A4KV4 table",
        "activations",
        "w4a4kv4",
        1.0,
        3,
    ),
    _most(
        "compatible with Hadamard rotation and scaling",
        f"no method's hidden error rises by more than 2 %, 2 bits: {_TINY}",
        _TABLE,
        "transforms",
        "worst",
        1.02,
        3,
    ),
    _most(
        "still first after Hadamard rotation and scaling",
        f"hidden error below that of OPTQ and RTN with both, 2 bits: {_TINY}",
        _TABLE,
        "transforms",
        "qronos_over_best",
        1.0,
        3,
    ),
)
