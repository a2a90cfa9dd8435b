"""The command line of a search, and what its ledger says so far: for whoever starts one and kills it."""

from __future__ import annotations

import sys
from pathlib import Path

from proving_ground.search import ledger
from proving_ground.search.store import SearchDir

PLANTED = "t008"
"""The one trial of the suite `smoke` that can learn: the others' rates are too small, and the last one's too large."""


def command(runs: Path, *words: str) -> list[str]:
    """The words of one command."""
    return [sys.executable, "-m", "proving_ground.search", *words, "--runs", str(runs)]


def ended(run_dir: SearchDir) -> set[str]:
    """The trials that have ended."""
    return {it.id for it in ledger.trials(ledger.read(run_dir.ledger)).values() if it.ended}
