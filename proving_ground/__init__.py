"""Proving Ground from Python: run a suite, open a run, and look at its figures as tables. README.md shows how.

Nothing is imported before it is used: `pg --help` needs neither torch nor pandas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proving_ground.api import Run, launch, run
    from proving_ground.api import open_run as open  # noqa: A004 - `proving_ground.open`, as `PIL.Image.open`

__all__ = ["Run", "launch", "open", "run"]

HERE = {"Run": "Run", "launch": "launch", "run": "run", "open": "open_run"}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - what the module has
    """What `proving_ground.api` has under that name."""
    if name not in HERE:
        raise AttributeError(f"module 'proving_ground' has no attribute {name!r}; it has {', '.join(__all__)}")
    from proving_ground import api  # noqa: PLC0415 - pandas, only when it is used

    return getattr(api, HERE[name])
