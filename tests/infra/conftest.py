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
