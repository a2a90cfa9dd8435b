"""Trainers with one defect each: `--entry tests.validations.defective:NAME`, NAME of `defects.DEFECTS`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.validations import defects


def __getattr__(name: str) -> Callable[[list[str]], int]:
    """The trainer with the defect of that name.

    Raises:
        AttributeError: there is none.
    """
    if name not in defects.DEFECTS:
        raise AttributeError(name)
    return partial(defects.run, name)
