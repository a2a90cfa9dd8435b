"""The stacks, recorded once a session: `recorded["prod"]` is all that prod declares."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from infra.config import STACKS
from tests.infra.mocks import Recorded, record


@pytest.fixture(scope="session")
def recorded() -> Mapping[str, Recorded]:
    """Every stack's program, run against mocks."""
    return {stack: record(stack) for stack in STACKS}


def pytest_configure(config: pytest.Config) -> None:
    """Register this folder's marker."""
    config.addinivalue_line("markers", "apiserver: needs a Kubernetes API server, Helm or a Blob emulator")
