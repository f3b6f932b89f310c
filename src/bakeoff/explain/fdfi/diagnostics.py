"""Whether the disentangled latents are independent, and the map its own inverse."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def distance_correlations(Z: FloatArray) -> FloatArray:
    """Distance correlation of every pair of columns of Z (n, d), as (d, d); memory 4 d n^2 bytes.

    The bias-corrected estimate (Szekely and Rizzo 2013), clipped at 0: the plain one is .1 or more for
    independent columns of some hundred rows, which would hide what the diagnostic looks for.
    """
    n, d = Z.shape
    if n < 4:  # the correction is not defined
        return np.zeros((d, d))
    centred = np.empty((d, n * n), dtype=np.float32)
    for k in range(d):
        D = np.abs(Z[:, k, None] - Z[:, k])
        row = D.sum(0) / (n - 2)
        D = D - row - row[:, None] + D.sum() / ((n - 1) * (n - 2))
        np.fill_diagonal(D, 0)
        centred[k] = D.ravel() / max(float(np.linalg.norm(D)), 1e-300)
    squared = centred @ centred.T
    return np.asarray(np.sqrt(np.clip(squared, 0, 1)), dtype=np.float64)


def warn_of(diagnostics: dict[str, Any], n: int) -> None:
    """8. warnings; the bound on the largest pair grows where few rows make chance dependence likely [ours]."""
    if n < 100:
        warnings.warn(f"{n} evaluation rows: intervals and p-values are rough", stacklevel=4)
    largest = diagnostics["distance_correlation_max"]
    if diagnostics["distance_correlation_median"] > 0.15 or largest > np.sqrt(0.15**2 + 10 / min(n, 300)):
        warnings.warn(
            f"latents are still dependent (distance correlation up to {largest:.2f}): more n_steps or rows may help",
            stacklevel=4,
        )
    if diagnostics["roundtrip_rmse"] > 0.05:
        warnings.warn(
            f"the map misses its start by {diagnostics['roundtrip_rmse']:.2g} sd: raise ode_steps", stacklevel=4
        )
