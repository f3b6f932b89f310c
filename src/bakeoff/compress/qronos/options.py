"""What a user can get wrong in the options, told before anything is loaded."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

from bakeoff.arena.types import InputError

SHAPE = {"num_hidden_layers": 30, "hidden_size": 576, "intermediate_size": 1536, "max_position_embeddings": 8192}
"""Of the default model."""
BITS = (1.58, 2, 3, 4, 5, 6, 8)
TransformName = Literal["none", "hadamard", "equalize"]


def check_options(
    bits: float, group_size: int, act_bits: int, kv_bits: int, transform: str, damp: str, samples: int, seq_len: int
) -> float | Literal["sigma"]:
    """All that needs no file to be read; gives the damping."""
    if bits not in BITS:
        raise InputError(f"{bits} is not supported", "--bits", f"choose {', '.join(map(str, BITS))}")
    for name, value in (("act-bits", act_bits), ("kv-bits", kv_bits)):
        if value and not 2 <= value <= 8:
            raise InputError(f"{value} is not between 2 and 8", f"--{name}", "0 leaves them float")
    if transform not in get_args(TransformName):
        raise InputError(f"{transform!r} is not known", "--transform", f"choose {', '.join(get_args(TransformName))}")
    if group_size and group_size < 8:
        raise InputError(f"{group_size} is less than 8", "--group-size", "0 shares a scale in a whole row")
    for name, value, least in (("samples", samples, 1), ("seq-len", seq_len, 2)):
        if value < least:
            raise InputError(f"{value} is too small", f"--{name}", f"at least {least}")
    try:
        share: float | Literal["sigma"] = "sigma" if damp == "sigma" else float(damp)
    except ValueError:
        share = math.nan
    if not (share == "sigma" or 0 <= float(share) < math.inf):
        raise InputError(f"{damp!r} is no share", "--damp", "0.01 is usual; sigma is the paper's")
    return share


def check_shape(shape: dict[str, Any], blocks: str, group_size: int, samples: int, seq_len: int) -> int:
    """The number of blocks; what a config names differently is checked when the model is there."""
    found = int(shape.get("num_hidden_layers") or shape.get("n_layer") or 0)
    if not (blocks == "all" or (blocks.isdecimal() and 1 <= int(blocks) <= (found or int(blocks)))):
        raise InputError(f"{blocks} of a model with {found} blocks", "--blocks", f"give 1 to {found}, or all")
    context = shape.get("max_position_embeddings") or shape.get("n_positions")
    if context and seq_len > context:
        raise InputError(f"{seq_len} tokens, the model's context is {context}", "--seq-len", "shorten the sequences")
    hidden = int(shape.get("hidden_size") or shape.get("n_embd") or 0)
    if group_size > hidden > 0:
        raise InputError(f"{group_size} columns of layers with {hidden} inputs", "--group-size", "take a smaller one")
    widest = max(hidden, int(shape.get("intermediate_size") or shape.get("n_inner") or 4 * hidden))
    if samples * seq_len < widest:
        raise InputError(
            f"{samples * seq_len} calibration tokens cannot determine a {widest}x{widest} covariance",
            "--samples",
            f"give at least {widest} tokens (recommended 128x256)",
        )
    return found if blocks == "all" else int(blocks)
