"""What the tests of monitoring share: the real servers where they are installed, and runs to follow."""

from __future__ import annotations

import os

import pytest

from monitoring.programs import PACKAGES, missing

MUST_BE_THERE = os.environ.get("CI") == "true" and hasattr(os, "geteuid") and os.geteuid() == 0
"""In CI as root the packages are installed: their absence is a failure, not a reason to skip."""

needs_prometheus = pytest.mark.skipif(
    bool(missing()) and not MUST_BE_THERE, reason=f"not installed: {', '.join(missing())} ({PACKAGES})"
)
