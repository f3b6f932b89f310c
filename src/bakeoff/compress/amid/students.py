"""Students that are cut from a teacher, and vocabularies that must agree."""

from __future__ import annotations

import copy
from typing import Any

from bakeoff.arena.types import InputError
from bakeoff.inputs.language import LanguageModel


def first_layers(teacher: Any, layers: int) -> Any:
    """A model of the first `layers` decoder layers of a Llama-like one, with its embeddings, final norm and head.

    Raises
    ------
    InputError
        The decoder layers are not at ``model.layers``.
    """
    blocks = getattr(getattr(teacher, "model", None), "layers", None)
    if blocks is None:
        raise InputError(
            f"{type(teacher).__name__} has no model.layers", "--student", "give the DIR of a student, or a Llama"
        )
    import torch

    config = copy.deepcopy(teacher.config)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    with torch.random.fork_rng(devices=[]):  # weights that are overwritten are drawn first
        student = type(teacher)(config)
    dropped = tuple(f"model.layers.{i}." for i in range(layers, len(blocks)))
    student.load_state_dict({k: v for k, v in teacher.state_dict().items() if not k.startswith(dropped)})
    return student.to(teacher.dtype).eval().requires_grad_(False)


def common_vocabulary(teacher: LanguageModel, student: LanguageModel) -> int:
    """The size that both heads have; beyond the tokenizer's tokens there is only padding.

    Raises
    ------
    InputError
        The tokenizers differ.
    """
    sizes = [len(side.tokenizer) for side in (teacher, student)]
    if teacher.tokenizer.get_vocab() != student.tokenizer.get_vocab():
        raise InputError(
            f"teacher and student tokenizers differ ({sizes[0]} vs {sizes[1]} tokens)",
            "--student",
            "logit distillation needs one vocabulary",
        )
    heads = [side.model.config.vocab_size for side in (teacher, student)]
    return int(heads[0] if heads[0] == heads[1] else min(*heads, sizes[0]))
