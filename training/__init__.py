"""The trainer: lean data-parallel training of a few models, and the events by which the harness watches it.

`from proving_ground.training import train, load` is the Python API (README.md); importing this package loads no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proving_ground.training.config import Config, ConfigError, from_dict, load
    from proving_ground.training.loop import Result, train

__all__ = ["Config", "ConfigError", "Result", "from_dict", "load", "train"]
TORCH = ("train", "Result")
"""Names that need it: it takes a second to import."""


def __getattr__(name: str) -> Any:  # noqa: ANN401 - what the package has
    """What is asked for, imported by then: so a Ctrl-C in the first moment of `pg training` finds its answer."""
    if name not in __all__:
        raise AttributeError(f"module 'training' has no attribute {name!r}")
    return getattr(
        importlib.import_module("proving_ground.training.loop" if name in TORCH else "proving_ground.training.config"),
        name,
    )
