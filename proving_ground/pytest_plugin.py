"""The pytest fixture `scaling`: "my scaling must not get worse" as a test. Loaded by pytest (entry point `pytest11`).

Only what pytest itself needs is imported here: a test run that does not use the fixture pays nothing for it.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from proving_ground.api import Run


class CannotTellWarning(UserWarning):
    """Nothing was shown to be worse, and nothing was shown not to be."""


class Scaling:
    """What the fixture gives: call it to run a suite, then hold the run to something."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs

    def __call__(self, suite: Path | str = "smoke", **options: object) -> Run:
        """Run a suite; options as `proving_ground.run` has them. A run that failed fails the test."""
        from proving_ground import api  # noqa: PLC0415 - pandas, only when it is used
        from proving_ground.reports.gate import WHOLE  # noqa: PLC0415 - same

        made = api.run(suite, runs=self.runs, **options)  # type: ignore[arg-type] # options of a command line
        broken = [it for it in made.results["verdicts"] if it["check"] in WHOLE]
        if bad := [it for it in broken if it["verdict"] != "pass"]:
            pytest.fail(f"{made.path}: {bad[0]['check']}: {bad[0]['why']}", pytrace=False)
        return made

    @staticmethod
    def holds(run: Run, *constraints: str) -> None:
        """Fail the test unless every constraint is shown to hold; what cannot be told is not shown."""
        found = run.check(*constraints)
        if bad := [f"{it.verdict}: {it.constraint}: {it.why}" for it in found if it.verdict != "pass"]:
            pytest.fail("\n".join(bad), pytrace=False)

    def not_worse(self, run: Run, baseline: Path | str, *, margin_percent: float = 1.0) -> None:
        """Fail the test where a figure is worse than in the run `baseline`; warn where that cannot be told."""
        from proving_ground.reports import commands  # noqa: PLC0415 - numpy, only when it is used
        from proving_ground.reports.comparing import pairing  # noqa: PLC0415 - numpy, only when it is used
        from proving_ground.reports.comparing.compare import UNKNOWN, WORSE, overall  # noqa: PLC0415 - same

        before, after = (pairing.load(self.runs, str(it)) for it in (Path(baseline).resolve(), run.path))
        made = commands.compared(self.runs, before, after, margin_percent)
        if overall(made.found) == WORSE:
            pytest.fail(made.sentence, pytrace=False)
        if overall(made.found) == UNKNOWN:
            warnings.warn(made.sentence, CannotTellWarning, stacklevel=2)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where runs are kept."""
    words = "keep the runs of the fixture `scaling` in this folder (default: a temporary one)"
    parser.getgroup("proving-ground").addoption("--scaling-runs", metavar="DIR", type=Path, help=words)


@pytest.fixture
def scaling(request: pytest.FixtureRequest, tmp_path: Path) -> Scaling:
    """Measure how something scales, and hold it to what it was."""
    return Scaling(request.config.getoption("--scaling-runs") or tmp_path / "runs")
