"""The trainer: lean data-parallel training of a few models, and the events by which the harness watches it.

`from training import train, load` is the Python API (README.md); importing this package loads no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from training.config import Config, ConfigError, from_dict, load

if TYPE_CHECKING:
    from training.loop import Result, train

__all__ = ["Config", "ConfigError", "Result", "from_dict", "load", "train"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the two names that need torch, when they are asked for
    if name in ("train", "Result"):
        from training import loop  # noqa: PLC0415 - torch takes a second to import

        return getattr(loop, name)
    raise AttributeError(f"module 'training' has no attribute {name!r}")
