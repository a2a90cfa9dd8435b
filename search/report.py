"""Results and page of a search; a process of its own, since drawing takes its imports.

Called by `search.commands`, which imports nothing of this.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from proving_ground.bench import rundir
from proving_ground.bench.rundir import RunDirError
from proving_ground.bench.shell import complain, plain, put
from proving_ground.reports import looks
from proving_ground.reports.verdicts import FAIL, PASS
from proving_ground.search import page, results
from proving_ground.search.results import Analysis
from proving_ground.search.store import SearchDir
from proving_ground.search.words import params_words, value_words


def main(words: list[str] | None = None) -> int:
    """Write `results.json` and `report.html`, say the verdict; 1 if a check failed."""
    parser = argparse.ArgumentParser(prog="python -m proving_ground.search.report")
    parser.add_argument("search", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quiet", action="store_true")
    options = parser.parse_args(words)
    try:
        analysis = results.analyse(SearchDir(options.search.resolve()))
        rundir.write_atomic(analysis.run.results, results.text(analysis))
        page.write(analysis)
    except (RunDirError, ValueError, OSError) as error:
        return complain("search", error, 2)
    if options.json:
        put("search", document(analysis))
    else:
        print("\n".join(told(analysis, options.search)))
    return 1 if analysis.overall == FAIL else 0


def document(analysis: Analysis) -> dict[str, object]:
    """For machines: the results, with where the report is."""
    made = plain(analysis.document)
    assert isinstance(made, dict)  # noqa: S101 - of a table there is a table
    del made["schema"]
    return {**made, "verdict": analysis.overall, "report": str(analysis.run.report)}


def told(analysis: Analysis, where: Path) -> list[str]:
    """The lines at the end."""
    search, best = analysis.search, analysis.best
    lines = []
    if best and (found := best.best(search.mode)):
        what = f"{search.metric} {value_words(found[1])} at step {found[0]} of {best.id}"
        lines.append(f"best:    {what} ({params_words(best.best_params(search.mode))})")
    odd = [it for it in analysis.verdicts if it["verdict"] != PASS]
    why = (
        "; ".join(it["why"] for it in odd)
        if odd
        else "; ".join(it["why"] for it in analysis.verdicts if it["check"] in ("completed", "trials"))
    )
    lines.append(f"verdict: {analysis.overall} {looks.SIGN[analysis.overall]} ({why})")
    return [*lines, f"report:  {where / 'report.html'}"]


if __name__ == "__main__":
    sys.exit(main())
