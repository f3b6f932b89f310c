"""Cost of FASA as ratios of one run, with the crossing point: ``python benchmarks/bench_fasa.py``.

One thread, float32, CPU time of the process. Add ``--quick`` to leave out the real model.
"""

from __future__ import annotations

import sys
import time

import torch

from bakeoff.compress import FasaCache, calibrate_fasa
from bakeoff.compress.fasa.cost import Step, best_ms, crossover, decode_step, speedup

LENGTHS = [2**power for power in range(9, 16)]


def told(what: str, value: float, relation: str, target: float) -> None:
    met = value >= target if relation == ">=" else value <= target
    print(f"{what:84s} {value:8.3f}   {relation} {target:<6g} {'met' if met else 'missed'}", flush=True)


def decode(heads: int, kv_heads: int, d: int) -> list[Step]:
    """One new token in one layer: SDPA against predict + choose + gather + attend, best of 15."""
    steps = [decode_step(t, heads, kv_heads, d) for t in LENGTHS]
    at = crossover(steps)
    shape = f"{heads} query and {kv_heads} key heads, d = {d}, 256 tokens read"
    print(f"{shape}: slower than full attention below {at} tokens" if at else f"{shape}: slower everywhere")
    print(f"  {'tokens':>8s} {'SDPA ms':>9s} {'FASA ms':>9s} {'ratio':>7s} {'byte bound':>10s}")
    for step in steps:
        bound = speedup(d, d // 8, 256, step.t)
        print(f"  {step.t:8d} {step.full:9.3f} {step.fasa:9.3f} {step.full / step.fasa:7.2f} {bound:10.2f}")
    return steps


def targets(steps: list[Step]) -> None:
    long = next(step for step in steps if step.t == 16384)
    told("decode attention / SDPA, t = 16,384, d = 64", long.fasa / long.full, "<=", 0.65)
    told("prediction without the choice / step, t = 16,384, d = 64", long.predict / long.fasa, "<=", 0.25)


def layouts() -> None:
    """The transposed copy against the same numbers with tokens first, scoring one query."""
    query, copy = torch.randn(1, 9, 1, 16), torch.randn(1, 9, 16, 16384)
    rows = copy.transpose(-1, -2).contiguous()
    ratio = best_ms(lambda: query @ rows.transpose(-1, -2), 15) / best_ms(lambda: query @ copy, 15)
    told("scores from keys by token / from the transposed copy, t = 16,384", ratio, ">=", 1)


def real_model() -> None:
    """Calibration and memory on SmolLM2-135M."""
    from bakeoff.inputs.language import default_text, random_windows, smollm2, split_tokens

    language = smollm2()
    ids = random_windows(split_tokens(language.tokenizer, default_text())[0], 1, 512, 0)
    with torch.no_grad():
        forward = best_ms(lambda: language.model(ids), 3)
    start = time.process_time()
    calibration = calibrate_fasa(language.model, ids)
    told("calibration on 512 tokens / one plain forward", 1000 * (time.process_time() - start) / forward, "<=", 3)
    cache = FasaCache(calibration, "M")
    with torch.no_grad():
        language.model(ids, cache=cache)
    bytes_ = cache.nbytes()
    tokens = 4 * 512 * calibration.rotary.layers
    print(f"numbers for each token and layer: keys and values {bytes_['keys_values'] // tokens}, FASA's copy "
          f"{bytes_['dom_keys'] // tokens}, SparQ's transposed keys "
          f"{calibration.rotary.kv_heads * calibration.rotary.head_dim}")  # fmt: skip
    share = calibration.rotary.group * calibration.n_tip / calibration.rotary.head_dim
    told(
        "variant M: bytes that stay on the device / keys and values",
        bytes_["resident"] / bytes_["keys_values"],
        "<=",
        share,
    )


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    targets(decode(9, 3, 64))
    decode(8, 8, 128)
    layouts()
    if "--quick" not in sys.argv:
        real_model()


if __name__ == "__main__":
    main()
