"""How values and parameters of trials are written, in the terminal and on the page. Called by what writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def value_words(value: float) -> str:
    """Four significant digits."""
    return f"{value:.4g}"


def params_words(params: Mapping[str, Any]) -> str:
    """`lr 0.12, dropout 0.3`."""
    return ", ".join(f"{name} {value_words(it) if isinstance(it, float) else it}" for name, it in params.items())


def setting(value: object) -> str:
    """A value as the trainer's command line reads it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
