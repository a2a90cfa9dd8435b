"""How every report looks in a terminal: widths, colours, signs, paths, commands."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proving_ground.bench.rundir import RunDir
from proving_ground.reports.verdicts import FAIL, PASS, UNKNOWN

WIDE = 160  # columns of a line in a file or a CI log
ROOMY = 128  # from here on a size fits into one line; below, what it lost stands on a line of its own
STYLE = {PASS: "bold green", FAIL: "bold red", UNKNOWN: "bold yellow"}
SIGN = {PASS: "✓", FAIL: "✗", UNKNOWN: "?"}
NO_HTML = "not made (--no-html)"


def elsewhere(plan: Mapping[str, Any]) -> tuple[str, ...]:
    """What a command has to say to go to the same cluster; nothing where that is the one it takes by itself."""
    option = str(plan["cluster"].get("option") or plan["cluster"]["name"])
    return () if option == "local" else ("--cluster", option)


def shown_path(run: RunDir) -> str:
    """The run's path, as short as a person would type it."""
    try:
        return str(run.path.relative_to(Path.cwd()))
    except ValueError:
        return str(run.path)
