"""The right trainer, and two that break the recovery itself. Started by `test_mutants.py`.

Each is an `--entry` of the launcher: it puts its defect in and then runs the ordinary trainer. Those whose training is
wrong are in `tests.validations.defects`.
"""

from __future__ import annotations

from typing import Any

from training import __main__ as trainer
from training import checkpoint, loop, saving
from training.stores import MANIFEST


def right(words: list[str]) -> int:
    """No defect: what the others are compared with."""
    return trainer.main(words)


def no_recovery(words: list[str]) -> int:
    """A worker that does not start again."""

    def fails(_job: loop.Job, _parts: dict[str, Any]) -> None:
        raise RuntimeError("cannot go on")

    vars(saving)["restore"] = fails
    return trainer.main(words)


def checksum_off(words: list[str]) -> int:
    """A damaged checkpoint is loaded as if nothing were wrong with it."""
    read = checkpoint.read

    def trusting(store: Any, name: str, part: str) -> tuple[Any, str]:
        content, digest = read(store, name, part)
        if part != MANIFEST:
            about = checkpoint.unseal(read(store, name, MANIFEST)[0].getvalue(), name)[0]
            digest = about["files"][part]["sha256"]
        return content, digest

    vars(checkpoint)["read"] = trusting
    return trainer.main(words)
