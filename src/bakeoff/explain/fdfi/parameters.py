"""The parameters of `FlowImportance` and their valid values."""

from __future__ import annotations

from typing import Any

import numpy as np

from .losses import LOSSES, QUADRATIC

CHOICES = {
    "loss": tuple(LOSSES),
    "order": ("scpi", "cpi"),
    "disentangler": ("flow", "linear"),
    "sampling": ("resample", "permutation", "normal", "condperm"),
    "jacobian": ("avg_sq", "per_sample", "average"),
    "base": ("direct", "roundtrip"),
    "covariance": ("auto", "ledoit_wolf", "empirical"),
    "margin": ("decoys",),
    "adjust": ("bh", "holm", "bonferroni"),
}


def check_parameters(self: Any) -> None:
    """Raise a ValueError that lists what is valid, where a parameter is not."""
    for name, valid in CHOICES.items():
        value = getattr(self, name)
        if isinstance(value, str) and value not in valid:
            raise ValueError(f"{name}={value!r} is none of {', '.join(valid)}")
    if not hasattr(self.estimator, "predict") and not callable(self.estimator):
        raise ValueError("estimator must have predict, or be a callable X -> (n,)")
    missing = [name for name in ("encode", "decode", "jacobian") if not hasattr(self.disentangler, name)]
    if missing and not isinstance(self.disentangler, str):
        raise ValueError(f"disentangler has no {', '.join(missing)}")
    for name, least in {"n_samples": 1, "n_steps": 0, "hidden": 1, "ode_steps": 1, "n_decoys": 0}.items():
        value = getattr(self, name)
        if not (isinstance(value, int | np.integer) and value >= least):
            raise ValueError(f"{name}={value!r} must be a whole number, at least {least}")
    for name in ("se_floor",) if isinstance(self.margin, str) else ("se_floor", "margin"):
        value = getattr(self, name)
        if not (isinstance(value, int | float | np.number) and 0 <= value < np.inf):
            raise ValueError(f"{name}={value!r} must be a finite number, at least 0")
    if not callable(self.loss) and not isinstance(self.loss, str):
        raise ValueError(f"loss={self.loss!r} must be a name or a callable (y, f) -> (n,)")
    if self.n_samples < 2 and self.order == "scpi" and self.loss in QUADRATIC:
        raise ValueError("order='scpi' needs n_samples of 2 or more, to measure its own bias")
    if not 0 < self.alpha < 1:
        raise ValueError(f"alpha={self.alpha} must be between 0 and 1")
    if self.cv is not None and self.cv not in range(2, 6):
        raise ValueError(f"cv={self.cv} must be 2 to 5")
