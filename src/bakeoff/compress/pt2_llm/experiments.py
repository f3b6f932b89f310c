"""Experiments of the claims on eight real layers: q, o, gate and down of blocks 3 and 15 of SmolLM2-135M."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from bakeoff.inputs.language import default_text, load_model, random_windows, split_tokens

if TYPE_CHECKING:
    import torch

LAYERS = tuple(
    f"model.layers.{block}.{name}"
    for block in (3, 15)
    for name in ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj")
)


class Layer(NamedTuple):
    """A weight W (n, m) and C = X'X (m, m) of its inputs."""

    W: torch.Tensor
    C: torch.Tensor


def fitting(seed: int) -> dict[str, float]:
    """What ITF and AGA do to whole rows, on 512 tokens of calibration that are also those of the errors."""
    import numpy as np

    from .blocks import relative_errors
    from .fitting import aligned, refined, started

    rise, above, gain, lift = [], [], [], []
    for W, C in model_layers(seed):
        W, C = W.double(), C.double()
        start = started(W)
        rounds = [refined(W, start, most) for most in (0, 1, 2, 4, 8, 16, 32)]
        e_w = [(W - fit.values()).square().sum(1) for fit in (start, *rounds)]
        rise.append(max(float(((b - a) / a).max()) for a, b in pairwise(e_w)))
        before, after = rounds[-1], aligned(W, C, rounds[-1])
        rows = [((W - fit.values()) @ C * (W - fit.values())).sum(1) for fit in (before, after)]
        above.append(float((rows[1] / rows[0]).max()))
        old, new = (relative_errors(W, fit.values(), C) for fit in (before, after))
        gain.append(new["e_x"] / old["e_x"])
        lift.append(new["e_w"] / old["e_w"])
    ratios = {"e_x_ratio": gain, "e_w_ratio": lift}
    means = {name: math.exp(float(np.log(values).mean())) for name, values in ratios.items()}
    return {"e_w_rise": max(rise), "worst_row": max(above), **means}


def reordering(seed: int) -> dict[str, float]:
    """What SSR does to the blocks, and to the output error of the whole method; mean of eight layers over mean."""
    from .blocks import ternarize

    sums = {(name, ssr): 0.0 for name in ("variance", "e_x") for ssr in (True, False)}
    for W, C in model_layers(seed):
        for ssr in (True, False):
            made = ternarize(W, C, ssr=ssr)
            sums["e_x", ssr] += made.errors["e_x"]
            sums["variance", ssr] += _within(W[:, made.perm], made.block_size)
    return {f"{name}_ratio": sums[name, True] / sums[name, False] for name in ("variance", "e_x")}


def _within(W: torch.Tensor, k: int) -> float:
    """Variance of the columns of a block around their mean column, as a share of the variance of all columns."""
    blocks = [W[:, start : start + k] for start in range(0, W.shape[1], k)]
    spread = sum(float((part - part.mean(1, keepdim=True)).square().sum()) for part in blocks)
    return spread / float((W - W.mean(1, keepdim=True)).square().sum())


def size(seed: int) -> dict[str, float]:
    """Bytes in the checkpoint of the linear layers of two blocks: over those of 2-bit OPTQ and of float16."""
    from .bout import load
    from .contenders import optq_2bit, pt2_llm

    data = load(samples=4)
    ternary, two_bit = pt2_llm(data, seed), optq_2bit(data, seed)
    return {"over_2bit": ternary.nbytes / two_bit.nbytes, "over_float16": ternary.bits / 16}


def speed(seed: int) -> dict[str, float]:
    """Time of the packed layer over that of a dense float32 one, all eight layers, best of 20."""
    import torch

    from .blocks import ternarize
    from .linear import TernaryLinear

    totals: dict[str, float] = {}
    for W, C in model_layers(seed):
        packed = TernaryLinear.pack(ternarize(W, C))
        for name, tokens in (("decode", 1), ("prefill", 256)):
            x = torch.randn(tokens, W.shape[1], generator=torch.Generator().manual_seed(seed))
            for form, call in (("packed", partial(packed, x)), ("dense", partial(torch.nn.functional.linear, x, W))):
                totals[f"{name} {form}"] = totals.get(f"{name} {form}", 0.0) + _best(call)
    return {name: totals[f"{name} packed"] / totals[f"{name} dense"] for name in ("decode", "prefill")}


def _best(call: Callable[[], Any], times: int = 20) -> float:
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return min(taken)


def model_layers(seed: int) -> list[Layer]:
    """The layers, with the inputs that 2 x 256 tokens of the default text give them in the float model."""
    model, tokenizer = load_model(None)
    found: dict[str, Layer] = {}

    def keep(name: str, module: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        X = inputs[0].flatten(0, 1)
        found[name] = Layer(module.weight, X.T @ X)

    hooks = [model.get_submodule(name).register_forward_pre_hook(partial(keep, name)) for name in LAYERS]
    train, _ = split_tokens(tokenizer, default_text())
    model(random_windows(train, 2, 256, seed))
    for hook in hooks:
        hook.remove()
    return [found[name] for name in LAYERS]
