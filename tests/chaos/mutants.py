"""The right trainer, and three that break what is around it. Started by `test_mutants.py` and `test_ranks.py`.

Each is an `--entry` of the launcher: it puts its defect in and then runs the ordinary trainer. Those whose training is
wrong are in `tests.validations.defects`.
"""

from __future__ import annotations

import os
from typing import Any

from proving_ground.training import __main__ as trainer
from proving_ground.training import loop
from proving_ground.training.checkpoints import checkpoint, saving
from proving_ground.training.checkpoints.stores import MANIFEST


def right(words: list[str]) -> int:
    """No defect: what the others are compared with."""
    return trainer.main(words)


def always_slot_0(words: list[str]) -> int:
    """Every worker of a node takes itself for the first: on a node with GPUs all would compute on one."""
    os.environ["LOCAL_RANK"] = "0"
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
