"""The stacks, recorded once a session (`recorded["prod"]` is all that prod declares); no test sees the user's queue."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from proving_ground.infra import operate
from proving_ground.infra.config import STACKS
from tests.infra.mocks import Recorded, record


@pytest.fixture(scope="session")
def recorded() -> Mapping[str, Recorded]:
    """Every stack's program, run against mocks."""
    return {stack: record(stack) for stack in STACKS}


@pytest.fixture(autouse=True)
def _queue_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QUEUE", "NOTES"):
        monkeypatch.setattr(operate, name, tmp_path / "queue" / getattr(operate, name).name)
