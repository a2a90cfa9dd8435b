"""The rules as data: read, checked by promtool, and their live variant, whose durations are divided by a factor.

Called by `monitoring.commands`, `monitoring.servers` and the tests. The rules themselves are `rules/*.yaml`, their unit
tests `rules/tests/*.yaml`. Shipped durations are minutes; a fault in a test lasts seconds. So a live proof divides
every `for:`, every window, every offset, how far ahead a prediction looks, and the stated delay, all by one factor.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from proving_ground.monitoring.mistakes import MonitoringError
from proving_ground.monitoring.programs import program

RULES = Path(__file__).parent / "rules"
TESTS = RULES / "tests"
LIVE_FACTOR = 60.0  # minutes become seconds
WATCHDOG = "Watchdog"  # fires always, and is news only where it stops
UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
PART = re.compile(r"(\d+)(ms|[smhdw])")
DURATION = re.compile(r"(?:\d+(?:ms|[smhdw]))+")
IN_EXPRESSION = re.compile(rf"(\[|\boffset )({DURATION.pattern})")
AGE = re.compile(r"(time\(\) - [\w:]+\s*[<>]=?\s*)(\d+(?:\.\d+)?)(?![\w.])")
AHEAD = re.compile(r"(predict_linear\((?:[^()]|\([^()]*\))*,\s*)(\d+(?:\.\d+)?)(\s*\))")

Document = dict[str, Any]


@dataclass(frozen=True)
class Alert:
    """One alert, as its file has it; `within_s` is the longest time from its cause until it fires."""

    name: str
    severity: str
    within_s: float
    summary: str
    first: str
    runbook: str


def files(folder: Path = RULES) -> list[Path]:
    """The rule files."""
    return sorted(folder.glob("*.yaml"))


def read(file: Path) -> Document:
    """A rule file's document.

    Raises:
        MonitoringError: it cannot be read, or is no rule file.
    """
    try:
        document = yaml.safe_load(file.read_text())
    except OSError as error:
        raise MonitoringError(f"{file}: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise MonitoringError(f"{file}: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict) or not isinstance(document.get("groups"), list):
        raise MonitoringError(f"{file}: a rule file has a list `groups` of tables")
    return document


def rules_of(document: Document) -> Iterator[Document]:
    """Every rule of a file."""
    for group in document["groups"]:
        yield from group.get("rules", ())


def alerts(folder: Path = RULES) -> list[Alert]:
    """Every alert, in the order of the files."""
    found = [rule for file in files(folder) for rule in rules_of(read(file)) if "alert" in rule]
    return [alert_of(rule) for rule in found]


def alert_of(rule: Document) -> Alert:
    """An alert from its rule."""
    said = rule["annotations"]
    about = (said["summary"], said["first"], said["runbook"])
    return Alert(rule["alert"], rule["labels"]["severity"], seconds(said["within"]), *about)


def check(paths: list[Path]) -> None:
    """Have promtool look at rule files.

    Raises:
        MonitoringError: one is wrong; says what and where.
        OSError: promtool is not installed.
    """
    command = [program("promtool"), "check", "rules", *map(str, paths)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise MonitoringError(first_complaint(done.stdout))


def first_complaint(text: str) -> str:
    """What promtool objects to, as one line: which file, and the first thing that is wrong with it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    at = next((number for number, line in enumerate(lines) if line.startswith("FAILED")), len(lines) - 1)
    where = lines[at - 1].removeprefix("Checking ").removeprefix("Unit Testing: ").strip() if at else ""
    what = " ".join(lines[at : at + 3]).removeprefix("FAILED:").strip().removeprefix(f"{where}: ")
    return f"{where}: {what}"


def test(paths: list[Path]) -> None:
    """Run promtool's unit tests of the rules.

    Raises:
        MonitoringError: one fails; says which.
        OSError: promtool is not installed.
    """
    command = [program("promtool"), "test", "rules", *map(str, paths)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise MonitoringError(first_complaint(done.stdout))


def live(document: Document, factor: float) -> Document:
    """The same rules with every duration divided by a factor."""
    groups = [{**group, "rules": [live_rule(rule, factor) for rule in group["rules"]]} for group in document["groups"]]
    return {**document, "groups": groups}


def live_rule(rule: Document, factor: float) -> Document:
    """One rule with its durations divided."""
    changed = {**rule, "expr": live_expression(rule["expr"], factor)}
    if "for" in rule:
        changed["for"] = divided(rule["for"], factor)
    if "annotations" in rule:
        within = divided(rule["annotations"]["within"], factor)
        changed["annotations"] = {**rule["annotations"], "within": within}
    return changed


def live_expression(expression: str, factor: float) -> str:
    """An expression with its windows, offsets, ages and horizons divided."""
    shorter = IN_EXPRESSION.sub(lambda it: it[1] + divided(it[2], factor), expression)
    shorter = AGE.sub(lambda it: f"{it[1]}{float(it[2]) / factor:g}", shorter)
    return AHEAD.sub(lambda it: f"{it[1]}{float(it[2]) / factor:g}{it[3]}", shorter)


def divided(duration: str, factor: float) -> str:
    """A duration divided, in whole milliseconds: `5m` by 60 is `5000ms`."""
    return f"{max(1, round(seconds(duration) * 1000 / factor))}ms"


def seconds(duration: str) -> float:
    """Prometheus' `1m30s` in seconds.

    Raises:
        MonitoringError: it is no duration.
    """
    if not DURATION.fullmatch(duration):
        raise MonitoringError(f"{duration!r} is no duration such as 30s or 1m30s")
    return sum(int(number) * UNITS_MS[unit] for number, unit in PART.findall(duration)) / 1000


def write_live(folder: Path, factor: float, source: Path = RULES) -> None:
    """Write the live variant of every rule file to a folder; a factor of 1 writes them as they are.

    Raises:
        MonitoringError: a rule file is wrong.
    """
    for file in files(source):
        (folder / file.name).write_text(yaml.safe_dump(live(read(file), factor), sort_keys=False, allow_unicode=True))
