import numpy as np


def trimmed_mean(sample: np.ndarray, share: float = 0.1) -> float:
    """Mean of a sample without its tails."""
    ordered = np.sort(sample)
    cut = int(share * len(ordered))
    return float(ordered[cut : len(ordered) - cut].mean())
