"""A trainer of the user's own, given as `package.module:function`. Called by the commands that take `--entry`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import import_module

from proving_ground.training.config import ConfigError


def call(entry: str, words: Sequence[str]) -> int:
    """Call the function with the words of a command line; the exit status that it returns, 0 for none.

    Raises:
        ConfigError: not of the form MODULE:FUNCTION.
    """
    if not re.fullmatch(r"[\w.]+:\w+", entry):
        raise ConfigError(f"--entry {entry}: must be MODULE:FUNCTION")
    module, _, function = entry.partition(":")
    return int(getattr(import_module(module), function)(list(words)) or 0)
