"""Compression of language models: quantization, sparse attention, distillation."""

import lazy_loader

from ._shared.registration import register_when_imported

register_when_imported()
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
