"""What may fail without the rest of a report: it becomes a line on the page and an unknown verdict.

Called wherever a part of a report is made that others do without: figures and sections of both kinds of report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from proving_ground.reports.verdicts import UNKNOWN, Verdict, verdict

CHECK = "report"
"""The check that is unknown where something could not be made."""

T = TypeVar("T")


@dataclass(frozen=True)
class Section:
    """One section: what it is called, what makes it of an analysis, and what stands there when that fails."""

    name: str
    make: Callable[[Any], Any]
    instead: Any = None


@dataclass
class Attempts:
    """What was tried; `failed` has a line for everything that could not be made."""

    failed: list[str] = field(default_factory=list)

    def made(self, name: str, make: Callable[[], T], instead: T) -> T:
        """What `make` returns, or `instead` if it raises."""
        try:
            return make()
        except Exception as error:  # noqa: BLE001 - whatever it fails on, the rest of the report is right
            self.failed.append(f"this section could not be made: {name}: {type(error).__name__}: {error}")
            return instead

    def sections(self, analysis: object, sections: Mapping[str, Section]) -> dict[str, Any]:
        """Every section by its key."""
        return {key: self.made(it.name, lambda it=it: it.make(analysis), it.instead) for key, it in sections.items()}  # type: ignore[misc]

    @property
    def verdicts(self) -> list[Verdict]:
        """Unknown for everything that could not be made."""
        return [verdict(CHECK, UNKNOWN, line) for line in self.failed]


def unmade(verdicts: Sequence[Verdict]) -> list[str]:
    """The lines of the page about what is missing on it."""
    return [str(found["why"]) for found in verdicts if found["check"] == CHECK]
