"""Which metrics are better the larger they are. Called by `reports` and `search.auto`; standard library only."""

from __future__ import annotations

HIGHER = ("accuracy", "acc", "f1", "auc", "r2", "precision", "recall", "hit_rate")
LOWER = ("loss", "error", "mse", "rmse", "mae", "rmse_log_return", "perplexity")


def known(metric: str) -> bool:
    """Whether it is a metric of which that is known."""
    return metric.lower() in (*HIGHER, *LOWER)


def is_higher(metric: str) -> bool:
    """Whether a larger value of the metric is better; losses and errors are better small."""
    return metric.lower() in HIGHER
