"""Stand-alone experiments behind the claims, on SmolLM2-135M and this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from .calibration import FasaCalibration
    from .selectors import Selector

HAYSTACK = 2000
NAMES: tuple[str, ...] = ("Anna", "Boris", "Clara", "David", "Elena", "Felix", "Grace", "Henry", "Irene", "James")
NAMES += ("Karen", "Louis", "Maria", "Nancy", "Oscar", "Peter", "Quinn", "Robert", "Sarah", "Thomas")
THINGS: tuple[str, ...] = (
    "tiger",
    "apple",
    "piano",
    "river",
    "castle",
    "violin",
    "rocket",
    "garden",
    "lemon",
    "dragon",
)
THINGS += ("bottle", "camera", "pencil", "window", "basket", "hammer", "candle", "mirror", "bridge", "wallet")


def _texts() -> list[str]:
    """Help topics, source code, and reference documentation in English: three kinds of text that are installed."""
    import argparse
    import inspect

    import numpy as np

    from bakeoff.inputs.language import default_text

    documented = (inspect.getdoc(getattr(np, name)) or "" for name in sorted(np.__all__))
    return [default_text(), inspect.getsource(argparse), "\n\n".join(documented)]


def _tokens(tokenizer: Any, text: str) -> torch.Tensor:
    import torch

    return torch.tensor(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


# Agreement


class _Watch:
    """An attender that leaves attention full and asks selectors what they would have read."""

    def __init__(self, selectors: dict[str, tuple[Selector, int]], prompt: int, n: int) -> None:
        self.selectors, self.prompt, self.n = selectors, prompt, n
        self.overlap: dict[str, list[float]] = {name: [] for name in selectors}
        self.mass: dict[str, list[float]] = {name: [] for name in selectors}

    def __call__(self, module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float | None) -> None:
        import torch

        from .attention import as_allowed, grouped_scores, top_mask
        from .selectors import Seen

        late, t = query[:, :, self.prompt :], key.shape[2]
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        steps = as_allowed(None, late.shape[2], t, query.device)[0, 0]
        scores = grouped_scores(late, key)
        seen = Seen(
            module.layer_idx, late, query[:, :, : self.prompt], key, scores, steps, scale, self.prompt, self.n, 0, 1
        )
        hidden = scores.masked_fill(~steps, -torch.inf)
        best, weights = top_mask(hidden, self.n), (hidden * scale).softmax(-1)
        for name, (selector, sink) in self.selectors.items():
            keep = selector(seen._replace(sink=sink))
            self.overlap[name].append(float((best & keep).sum() / best.sum()))
            self.mass[name].append(float((weights * keep).sum(-1).mean()))


def check_agreement(seed: int) -> dict[str, float]:
    """Compound CA at K = 64 and softmax mass over positions 256 to 511 of one held-out window, all layers and heads."""
    import numpy as np

    from bakeoff.inputs.language import default_text, random_windows, smollm2, split_tokens

    from .calibration import calibrate_fasa
    from .hook import install
    from .planes import rotary_of
    from .selectors import Planes, Quest, SnapKV, oracle, random_calibration, slowest_planes, streaming

    language = smollm2()
    train, test = split_tokens(language.tokenizer, default_text())
    calibration = calibrate_fasa(language.model, random_windows(train, 1, 512, seed))
    rotary = rotary_of(language.model)
    selectors: dict[str, tuple[Selector, int]] = {
        f"fasa{n}": (Planes(calibration.with_n_tip(n).dims()), 0) for n in (2, 4, 8, 16)
    }
    selectors |= {"random8": (Planes(random_calibration(rotary, 8, seed).dims()), 0), "oracle": (oracle, 0)}
    selectors |= {"slowest8": (Planes(slowest_planes(rotary, 8).dims()), 0), "streaming": (streaming, 4)}
    selectors |= {"quest": (Quest(16), 0), "snapkv": (SnapKV(), 0)}
    watch = _Watch(selectors, 256, 64)
    undo = install(language.model, lambda tokens, cache: watch)
    language.model.model(random_windows(test, 1, 512, seed), use_cache=False)
    undo()
    overlap = {name: float(np.mean(values)) for name, values in watch.overlap.items()}
    mass = {name: float(np.mean(values)) for name, values in watch.mass.items()}
    others = ("random8", "streaming", "quest", "snapkv")
    gains = {
        "gain": overlap["fasa8"] - max(overlap[name] for name in others),
        "mass_gain": mass["fasa8"] - max(mass[name] for name in others),
        "growth": min(
            overlap[b] - overlap[a] for a, b in (("fasa2", "fasa4"), ("fasa4", "fasa8"), ("fasa8", "fasa16"))
        ),
    }
    return gains | overlap | {f"mass_{name}": value for name, value in mass.items()}


def check_planes(seed: int) -> dict[str, float]:
    """Share of the non-dominant planes with CA below .15 at K = 256, for queries 2,048 to 4,095 of a long sample."""
    import torch

    from bakeoff.inputs.language import default_text, random_windows, smollm2, split_tokens

    from .calibration import calibrate_fasa

    language = smollm2()
    train, _ = split_tokens(language.tokenizer, default_text())
    calibration = calibrate_fasa(language.model, random_windows(train, 1, 4096, seed), k=256, stride=128)
    ca = torch.stack(list(calibration.ca.values()))
    rest = ca.sort(-1, descending=True).values[..., calibration.n_tip :]
    return {"below": float((rest < 0.15).float().mean()), "dominant_ca": float(ca.amax(-1).mean())}


def check_invariance(seed: int) -> dict[str, float]:
    """Share of a head's dominant planes that a calibration on source code has in common with one on help topics."""
    from bakeoff.inputs.language import random_windows, smollm2

    from .calibration import calibrate_fasa

    language = smollm2()
    found: list[FasaCalibration] = []
    for text in _texts()[:2]:
        ids = _tokens(language.tokenizer, text)
        found.append(calibrate_fasa(language.model, random_windows(ids, 1, 512, seed)))
    return {"common": common_planes(*found)}


def common_planes(a: FasaCalibration, b: FasaCalibration) -> float:
    """Mean share of dominant planes in common, over layers and heads."""
    import torch

    pairs = [(a.dominant[layer], b.dominant[layer]) for layer in a.dominant]
    shared = torch.stack([(x[:, :, None] == y[:, None]).any(-1).float().mean(-1) for x, y in pairs])
    return float(shared.mean())


# Likelihood and retrieval


def check_order(seed: int) -> dict[str, float]:
    """Nats a token on text number `seed`: 4 windows of 384, the last 192 decoded with 48 tokens in every layer.

    4 sinks and 8 recents are among the 48 of all but the random planes, which are as published.
    """
    from bakeoff.inputs.language import even_windows, random_windows, smollm2

    from .calibration import calibrate_fasa
    from .planes import rotary_of
    from .selectors import Planes, Quest, everything, oracle, random_calibration, streaming
    from .simulate import Budget, simulate

    language = smollm2()
    ids = _tokens(language.tokenizer, _texts()[seed % 3])
    cut = int(0.9 * len(ids))
    calibration = calibrate_fasa(language.model, random_windows(ids[:cut], 1, 384, seed))
    at_random = random_calibration(rotary_of(language.model), 8, seed)
    selectors: dict[str, Selector] = {"full": everything, "oracle": oracle, "fasa": Planes(calibration.dims())}
    selectors |= {"quest": Quest(16), "streaming": streaming, "random": Planes(at_random.dims())}
    windows, nll = even_windows(ids[cut:], 4, 385), {}
    for name, selector in selectors.items():
        budget = Budget(48, 0, 0) if name == "random" else Budget(48)
        nll[name] = float(simulate(language.model, windows, 192, selector, budget)["nll"].mean())
    return nll | {
        "oracle_over_full": nll["oracle"] - nll["full"],
        "fasa_over_oracle": nll["fasa"] - nll["oracle"],
        "quest_over_fasa": nll["quest"] - nll["fasa"],
        "streaming_over_fasa": nll["streaming"] - nll["fasa"],
        "random_over_all": nll["random"] - max(nll["quest"], nll["streaming"]),
    }


def check_retrieval(seed: int) -> dict[str, float]:
    """20 facts hidden in 2,000 tokens of prose and asked for afterwards, 256 tokens read: share of answers right."""
    from transformers import DynamicCache

    from bakeoff.inputs.language import default_text, random_windows, smollm2, split_tokens

    from .calibration import calibrate_fasa
    from .selectors import Planes, PromptSnapKV, everything, streaming

    language = smollm2()
    train, test = split_tokens(language.tokenizer, default_text())
    calibration = calibrate_fasa(language.model, random_windows(train, 1, 2048, seed), stride=64)
    prompt, questions = _haystack(language.tokenizer, random_windows(test, 1, HAYSTACK, seed)[0], seed)
    snapkv, cache = PromptSnapKV(), DynamicCache(config=language.model.config)
    _ask(language.model, prompt, cache, snapkv, len(prompt))  # fills the cache, and SnapKV sees the prompt
    right = {}
    selectors: dict[str, Selector] = {"full": everything, "fasa": Planes(calibration.dims())}
    for name, selector in (selectors | {"snapkv": snapkv, "streaming": streaming}).items():
        answers = []
        for ids, answer in questions:
            logits = _ask(language.model, ids, cache, selector, len(prompt))
            cache.crop(-len(ids))
            answers.append(bool((logits[-answer - 1 : -1].argmax(-1) == ids[-answer:]).all()))
        right[name] = sum(answers) / len(answers)
    return right | {
        "fasa_minus_full": right["fasa"] - right["full"],
        "fasa_minus_snapkv": right["fasa"] - right["snapkv"],
    }


def _ask(model: Any, ids: torch.Tensor, cache: Any, selector: Selector, prompt: int) -> torch.Tensor:
    """Logits (T, vocabulary) of tokens behind what the cache holds; those behind the prompt are decode steps."""
    import torch

    from .hook import install
    from .simulate import Budget, Simulation

    simulation = Simulation(selector, Budget(256), prompt)
    undo = install(model, lambda tokens, cache: simulation)
    try:
        with torch.no_grad():
            keep = 1 if len(ids) == prompt else len(ids)
            logits: torch.Tensor = model(ids[None], cache=cache, use_cache=True, logits_to_keep=keep).logits[0]
    finally:
        undo()
    return logits


def _haystack(tokenizer: Any, prose: torch.Tensor, seed: int) -> tuple[torch.Tensor, list[tuple[torch.Tensor, int]]]:
    """Prose with somebody's favourite thing in 20 places; the questions, and how many tokens their answers have."""
    import random

    import torch

    rng = random.Random(seed)
    names, things = list(NAMES), list(THINGS)
    rng.shuffle(names)
    rng.shuffle(things)
    prompt, questions = [], []
    for piece, name, thing in zip(prose.chunk(len(names)), names, things, strict=True):
        prompt += [piece, _tokens(tokenizer, f"\nThe favourite thing of {name} is the {thing}.\n")]
        asked = f"\nThe favourite thing of {name} is the"
        question, whole = _tokens(tokenizer, asked), _tokens(tokenizer, f"{asked} {thing}")
        questions.append((whole, len(whole) - len(question)))
    return torch.cat(prompt), questions


# Speed


def check_speed(seed: int) -> dict[str, float]:
    """SDPA over FASA, CPU time of a decode step of one layer on one thread, 256 tokens read, best of 15."""
    import torch

    from .cost import bytes_read, crossover, decode_step

    torch.set_num_threads(1)
    small = [decode_step(2**p, seed=seed) for p in range(9, 16)]
    large = [decode_step(2**p, 8, 8, 128, seed=seed) for p in range(9, 16)]
    ratio = {step.t: step.full / step.fasa for step in small}
    t = round(256 / (0.189 - 8 / 64))
    at_189 = decode_step(t, seed=seed)
    none = 2**16
    return {
        "ratio_16k": ratio[16384],
        "ratio_32k": ratio[32768],
        "growth": ratio[32768] - ratio[8192],
        "ratio_512": ratio[512],
        "ratio_16k_d128": next(step.full / step.fasa for step in large if step.t == 16384),
        "crossover": float(crossover(small) or none),
        "crossover_d128": float(crossover(large) or none),
        "ratio_at_18.9": at_189.full / at_189.fasa,
        "bytes_at_18.9": bytes_read(64, 8, 256, t),
    }
