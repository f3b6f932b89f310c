"""What a decode step costs: the paper's formulas, and times of the attention alone on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple


def bytes_read(d: int, n_tip: int, n_fac: int, t: int) -> float:
    """Share of the keys and values of one head that a step reads: n_tip / d + n_fac / t."""
    return n_tip / d + n_fac / t


def speedup(d: int, n_tip: int, n_fac: int, t: int) -> float:
    """The paper's theoretical speedup, the inverse of `bytes_read`."""
    return 1 / bytes_read(d, n_tip, n_fac, t)


class Step(NamedTuple):
    """Milliseconds of CPU for one new token in one layer at context length `t`."""

    t: int
    full: float
    fasa: float
    predict: float


def decode_step(
    t: int, heads: int = 9, kv_heads: int = 3, d: int = 64, n_fac: int = 256, repeats: int = 15, seed: int = 0
) -> Step:
    """Time full attention (SDPA) and FASA's step on random keys: float32, best of `repeats`, CPU time of the process.

    The step is `Fasa`'s own: predict from the transposed copy, choose with 4 sinks and 8 recents, gather, attend.
    """
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    from .attention import attend_to, choose
    from .method import predict

    generator = torch.Generator().manual_seed(seed)
    query, keys, values = (
        torch.randn(1, h, rows, d, generator=generator) for h, rows in ((heads, 1), (kv_heads, t), (kv_heads, t))
    )
    dims = torch.stack([torch.randperm(d, generator=generator)[: d // 4] for _ in range(heads)])
    owner = torch.arange(heads) // (heads // kv_heads)
    copy = keys.transpose(-1, -2)[:, owner[:, None], dims].contiguous()

    def full() -> Any:
        return scaled_dot_product_attention(query, keys, values, enable_gqa=True)

    def sparse() -> Any:
        if t <= n_fac:
            return full()
        index = choose(predict(query, keys, dims, copy), None, n_fac, 4, 8)
        return attend_to(query, keys, values, index, None, None)

    with torch.no_grad():
        times = [best_ms(call, repeats) for call in (full, sparse, lambda: predict(query, keys, dims, copy))]
    return Step(t, *times)


def best_ms(call: Callable[[], Any], repeats: int) -> float:
    """The least CPU time of a call, after one to warm up; a busy machine changes it little."""
    call()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return 1000 * min(times)


def crossover(steps: list[Step]) -> int | None:
    """The shortest measured context from which FASA is cheaper at every longer one; None where it is not at the end."""
    slower = [i for i, step in enumerate(steps) if step.fasa >= step.full]
    first = slower[-1] + 1 if slower else 0
    return steps[first].t if first < len(steps) else None
