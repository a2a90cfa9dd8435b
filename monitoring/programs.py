"""Finds Prometheus' programs, which are no Python packages. Called by `monitoring.rules` and `monitoring.servers`."""

from __future__ import annotations

import shutil

NAMES: dict[str, tuple[str, ...]] = {
    "prometheus": ("prometheus",),
    "promtool": ("promtool",),
    "alertmanager": ("alertmanager", "prometheus-alertmanager"),  # the second is Debian's name for it
}
PACKAGES = "Debian: apt-get install prometheus prometheus-alertmanager"


def program(name: str) -> str:
    """The path of a program.

    Raises:
        OSError: it is not installed; says how it can be.
    """
    for spelled in NAMES[name]:
        if found := shutil.which(spelled):
            return found
    raise OSError(f"{name} is not installed ({PACKAGES})")


def missing() -> list[str]:
    """The programs that are not installed."""
    return [name for name, spelled in NAMES.items() if not any(map(shutil.which, spelled))]
