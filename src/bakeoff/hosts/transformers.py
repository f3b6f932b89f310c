"""Checkpoints of Hugging Face transformers that are safe to load, and attention functions of one's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    Attention = Callable[..., tuple[torch.Tensor, torch.Tensor | None]]

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


class CheckpointError(ValueError):
    """A checkpoint that is not loaded: ``what`` is wrong, and ``how`` to mend it."""

    def __init__(self, what: str, how: str) -> None:
        self.what, self.how = what, how
        super().__init__(f"{what}; {how}")


def check_checkpoint(folder: Path, *, trust_pickle: bool = False) -> dict[str, Any]:
    """Look at a checkpoint before any library opens it; takes milliseconds.

    Parameters
    ----------
    folder : Path
        With ``config.json`` and safetensors weights, as ``save_pretrained`` writes it.
    trust_pickle : bool
        Accept pickled weights, which are still loaded with ``weights_only=True``.

    Returns
    -------
    dict
        The config.

    Raises
    ------
    CheckpointError
        No such folder, no config or weights, code of its own (``auto_map``), or pickled weights.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder", "give the folder that save_pretrained wrote")
    config = _read_config(folder / "config.json")
    if "auto_map" in json.dumps(config):
        raise CheckpointError(
            f"{folder} brings code of its own (auto_map in config.json)",
            "such a checkpoint is never loaded; use an architecture that transformers has",
        )
    if any(folder.glob("*.safetensors")):
        return config
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if not pickles:
        raise CheckpointError(f"{folder} has no weights", "it needs *.safetensors beside config.json")
    if not trust_pickle:
        raise CheckpointError(
            f"{pickles[0]} is a pickle, which can run any code", "save it as safetensors, or add --trust-pickle"
        )
    return config


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(
            f"{path.parent} has no readable config.json", "give the folder that save_pretrained wrote"
        ) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON ({error})", "save the model again") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} is not a JSON object", "save the model again")
    return config


def load_causal_lm(folder: Path, *, trust_pickle: bool = False) -> tuple[Any, Any]:
    """The causal language model of a folder in float32 and its tokenizer; in eval mode, without gradients.

    Nothing is downloaded, and no code that comes with the checkpoint runs.

    Raises
    ------
    CheckpointError
        See `check_checkpoint`; or transformers has no such model, or the files do not fit the config.
    """
    config = check_checkpoint(folder, trust_pickle=trust_pickle)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()  # it is a second's work
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32,
            local_files_only=True,
            use_safetensors=None if trust_pickle else True,
            trust_remote_code=False,
        )
    except Exception as error:  # whatever the host raises on a file that it cannot use
        raise CheckpointError(
            f"{folder}: {type(error).__name__}: {_first_line(error)}",
            f"{config.get('architectures', ['it'])[0]} must load with AutoModelForCausalLM",
        ) from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise CheckpointError(
            f"{folder}: no tokenizer: {_first_line(error)}", "save the tokenizer into the same folder"
        ) from error
    return model.eval().requires_grad_(False), tokenizer


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "")[:200]


def register_attention(name: str, function: Attention) -> None:
    """Make ``model.set_attn_implementation(name)`` use `function`; a second registration replaces the first.

    The mask of "sdpa" goes with it: without a mask function of its own an attention function gets
    ``attention_mask=None`` even where a batch is padded, and the padding is attended to.

    Parameters
    ----------
    name : str
    function : callable
        ``(module, query (B, H, Tq, d), key (B, H_kv, Tk, d), value (B, H_kv, Tk, d), attention_mask, *, scaling,
        dropout, **kwargs) -> (output (B, Tq, H, d), weights or None)``; query and key are already rotated.
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface

    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
