"""The stored form in transformers: save_pretrained writes packed weights, from_pretrained reads them.

Importing this module makes transformers know the quantization method "bakeoff". `bakeoff.compress` imports it as soon
as transformers is imported (see `registration`): in a fresh process ``import bakeoff.compress`` is all it takes.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import nn
from transformers.quantizers.auto import (
    AUTO_QUANTIZER_MAPPING,
    register_quantization_config,
    register_quantizer,
)
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from .streams import clone, decoder_blocks, layers_of

METHOD = "bakeoff"
SCHEMES = {
    "grid": ("bakeoff.compress._shared.quant_linear", "QuantLinear"),
    "ternary": ("bakeoff.compress.pt2_llm.linear", "TernaryLinear"),
}
"""The only classes that a config can ask for."""


class BakeoffConfig(QuantizationConfigMixin):  # type: ignore[misc]
    """What ``config.json`` says of a quantized model.

    Parameters
    ----------
    scheme : {"grid", "ternary"}
        Class of the layers.
    modules : dict
        Layer name to the arguments of its constructor.
    kv_bits : int, optional
        Of keys and values, in the first `kv_blocks` blocks.
    """

    def __init__(
        self,
        scheme: str = "grid",
        modules: dict[str, dict[str, Any]] | None = None,
        kv_bits: int | None = None,
        kv_blocks: int = 0,
        quant_method: str = METHOD,
    ) -> None:
        if scheme not in SCHEMES:
            raise ValueError(f"scheme={scheme!r} is not one of {', '.join(SCHEMES)}")
        self.quant_method = METHOD
        self.scheme, self.modules, self.kv_bits, self.kv_blocks = scheme, modules or {}, kv_bits, kv_blocks


class BakeoffQuantizer(HfQuantizer):  # type: ignore[misc]
    """Swaps the layers that the config names before weights are loaded."""

    requires_calibration = True
    quantization_config: BakeoffConfig

    def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> None:
        config = self.quantization_config
        module, name = SCHEMES[config.scheme]
        kind = getattr(importlib.import_module(module), name)
        layers = layers_of(model)
        for full, settings in config.modules.items():
            if full not in layers:
                raise ValueError(f"config.json: {full} is no linear layer of {type(model).__name__}")
            if (settings["out_features"], settings["in_features"]) != shape_of(layers[full]):
                raise ValueError(f"config.json: {full} has another shape in {type(model).__name__}")
            model.set_submodule(full, kind(**settings))
            parent = model.get_submodule(full.rpartition(".")[0])
            if not [*parent.parameters(recurse=False), *parent.buffers(recurse=False)]:
                parent._is_hf_initialized = True  # GPT-2 would initialize the weight of its layers from here

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> None:
        config = self.quantization_config
        if config.kv_bits:
            from .kv_cache import quantize_kv

            quantize_kv(model, decoder_blocks(model)[1][: config.kv_blocks], config.kv_bits)

    def is_serializable(self) -> bool:
        """Yes."""
        return True

    @property
    def is_trainable(self) -> bool:
        """No."""
        return False


if METHOD not in AUTO_QUANTIZER_MAPPING:  # a second registration raises
    register_quantization_config(METHOD)(BakeoffConfig)
    register_quantizer(METHOD)(BakeoffQuantizer)


def attach(model: Any, scheme: str = "grid", *, kv_bits: int | None = None, kv_blocks: int = 0) -> None:
    """Make ``save_pretrained`` of a model with replaced layers write a checkpoint that ``from_pretrained`` reads."""
    module, name = SCHEMES[scheme]
    kind = getattr(importlib.import_module(module), name)
    modules = {full: m.settings() for full, m in model.named_modules() if isinstance(m, kind)}
    config = BakeoffConfig(scheme, modules, kv_bits, kv_blocks)
    model.config.quantization_config = config
    model.hf_quantizer = BakeoffQuantizer(config, pre_quantized=True)


def dequantized(model: Any) -> Any:
    """The model with plain layers of the same weights, for tools that do not know bakeoff; activations stay float."""
    plain = clone(model)
    if hasattr(plain.config, "quantization_config"):
        del plain.config.quantization_config
    plain.hf_quantizer = None
    if getattr(plain.config, "_attn_implementation", None) == "bakeoff_kv":
        plain.set_attn_implementation("sdpa")
    with torch.device("meta"):
        originals = type(model)(plain.config)
    for full, module in list(plain.named_modules()):
        if _is_quantized(module):
            plain.set_submodule(full, _plain_layer(module, originals.get_submodule(full), plain.dtype))
    return plain


def _plain_layer(module: Any, original: Any, dtype: torch.dtype) -> nn.Module:
    weight = module.dequantize().to(dtype)
    layer = original  # on the meta device: only its class and shape are of use
    layer.weight = nn.Parameter(weight if isinstance(layer, nn.Linear) else weight.T.contiguous(), requires_grad=False)
    layer.bias = None if module.bias is None else nn.Parameter(module.bias.to(dtype), requires_grad=False)
    result: nn.Module = layer
    return result


def shape_of(layer: Any) -> tuple[int, int]:
    """Outputs and inputs of a linear layer."""
    rows, columns = layer.weight.shape
    return (rows, columns) if isinstance(layer, nn.Linear) else (columns, rows)


def stored_bytes(model: nn.Module) -> int:
    """Bytes of the buffers of all quantized layers."""
    return sum(b.numel() * b.element_size() for m in model.modules() if _is_quantized(m) for b in m.buffers())


def _is_quantized(module: nn.Module) -> bool:
    return hasattr(module, "settings") and hasattr(module, "dequantize")
