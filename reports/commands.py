"""The other commands of `python -m reports`, beside making a report. Called by `reports.cli`.

Each returns its exit status: 0 fine, 1 something got worse or failed, 2 the caller's mistake (raised as RunDirError).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import rundir, shell
from reports import (
    advice,
    bottlenecks,
    checks,
    comparison,
    forecast,
    gallery,
    gate,
    junit,
    overlay,
    pairing,
    results,
    series,
)
from reports.compare import MARGIN, WORSE, overall
from reports.recovery import failures, outlook
from reports.recovery import forecast as known
from reports.recovery import results as recovery

MOST_NODES = 1_000_000


def predict(arguments: argparse.Namespace) -> int:
    """Fit block A of a run that is under way, write `prediction.json`, and say what it predicts."""
    for line in forecast.lines(forecast.write(rundir.find(arguments.runs, arguments.run))):
        print(line)
    return 0


def undecided(arguments: argparse.Namespace) -> int:
    """Say which verdicts of a run that is under way are still open, and write them to `undecided.json`."""
    found = results.analyse(rundir.find(arguments.runs, arguments.run))
    rows = checks.undecided(found.verdicts, found.cells)
    sizes = {(it["where"]["case"], it["where"]["nodes"]): it["why"] for it in rows}
    made = [{"case": case, "nodes": nodes, "why": why} for (case, nodes), why in sizes.items()]
    found.run.write("undecided", {"sizes": made, "checks": [[it["check"], it["where"]] for it in rows]})
    for (case, nodes), why in sizes.items():
        print(f"still open: {case} on {nodes} nodes: {why}")
    return 0


def compare(arguments: argparse.Namespace) -> int:
    """Say of every figure that both have whether it got better, worse, or whether that cannot be told."""
    names = [arguments.before, arguments.after, *arguments.more]
    if len(names) > overlay.MOST:
        raise rundir.RunDirError(f"{len(names)} runs: at most {overlay.MOST} can be told apart on one page")
    chaos = [recovery.is_chaos(results.read_document(rundir.find(arguments.runs, name.partition(":")[0]), "plan"))
             for name in names]  # fmt: skip
    if any(chaos):
        return beside(arguments, names, alike=all(chaos))
    first, *others = (pairing.load(arguments.runs, name) for name in names)
    made = [compared(arguments.runs, first, other, arguments.margin) for other in others]
    if arguments.json and others[1:]:
        raise rundir.RunDirError(f"--json compares two runs, not {len(names)}")
    if arguments.json:
        shell.put("reports-compare", comparison.document(made[0]))
    else:
        print("\n\n".join(comparison.plain(it) for it in made))
    if arguments.markdown:
        arguments.markdown.write_text("\n".join(comparison.markdown(it) for it in made))
    if arguments.html:
        shown = [
            overlay.RunShown(it.name, it.figures_shown, it.analysis.plan["cluster"]["name"], it.analysis.provenance)
            for it in (first, *others)
        ]
        rundir.write_atomic(arguments.html, overlay.html(shown, made))
    return int(WORSE in [overall(it.found) for it in made])


def compared(runs: Path, before: pairing.Side, after: pairing.Side, margin_percent: float) -> comparison.Comparison:
    """Two sides, judged by the noise between the folder's runs. Also called by `proving_ground.pytest_plugin`."""
    pairing.refuse_unlike(before, after)
    noises = pairing.noise_between(runs, before, after)
    found = pairing.compare_sides(before, after, noises, margin_percent / 100)
    differs = pairing.differences(before, after)
    return comparison.Comparison(before.name, after.name, found, margin_percent, noises, differs)


def beside(arguments: argparse.Namespace, names: list[str], *, alike: bool) -> int:
    """Chaos runs side by side: their times are shown and not judged."""
    if not alike:
        raise rundir.RunDirError("a chaos run and a benchmark cannot be compared")
    if not arguments.html:
        raise rundir.RunDirError("chaos runs are compared on a page only: add --html FILE")
    every = [recovery.analyse(rundir.find(arguments.runs, name)) for name in names]
    shown = [overlay.RunShown(it.run.run_id, it.figures, it.plan["cluster"]["name"], it.provenance) for it in every]
    rundir.write_atomic(arguments.html, overlay.html(shown, []))
    print(f"{len(every)} chaos runs side by side, not judged: {arguments.html}")
    return 0


def index(arguments: argparse.Namespace) -> int:
    """Write `index.html` over all runs, and say where it is."""
    print(gallery.write(arguments.runs))
    return 0


def of_index(command: argparse.ArgumentParser) -> None:
    """Arguments of `index`: none beside the folder."""


def of_compare(command: argparse.ArgumentParser) -> None:
    """Arguments of `compare`."""
    command.add_argument("before", metavar="A", help="a run, or one case of it as RUN:CASE")
    command.add_argument("after", metavar="B", help="the same of what may be slower")
    command.add_argument("more", nargs="*", metavar="C", help="more runs, each compared with A")
    command.add_argument("--html", type=Path, metavar="FILE", help="also write a page with charts over each other")
    command.add_argument("--markdown", type=Path, metavar="FILE", help="also write the table for a pull request")
    command.add_argument(
        "--margin", type=percents, default=100 * MARGIN, metavar="PERCENT",
        help="changes within so many percent are of no interest (default: 1)",
    )  # fmt: skip


def percents(text: str) -> float:
    """A margin from the command line."""
    value = float(text)
    if not 0 <= value < 100:
        raise argparse.ArgumentTypeError(f"{text}: must be from 0 to less than 100")
    return value


def trends(arguments: argparse.Namespace) -> int:
    """Say where figures changed over many runs, and at which commit."""
    runs, notes = series.chosen(arguments.runs, arguments.run, arguments.suite)
    if arguments.json:
        figures = [comparison.trend_row(it) for it in series.series_of(runs)]
        return shell.put("reports-trend", {"suite": runs[-1].suite, "left_out": notes, "figures": figures})
    print(f"{runs[-1].suite}: {len(runs)} runs, {runs[0].run_id} to {runs[-1].run_id}")
    for line in [*notes, *comparison.trend_lines(series.series_of(runs))]:
        print(line)
    return 0


def of_trend(command: argparse.ArgumentParser) -> None:
    """Arguments of `trend`."""
    command.add_argument("run", nargs="*", metavar="RUN", help="which runs; default: all of a suite under --runs")
    command.add_argument("--suite", metavar="NAME", help="of which suite (default: that of the newest run)")


def advise(arguments: argparse.Namespace) -> int:
    """Say what would make it faster; write the suite that checks it, or set what running it gave beside it."""
    analysis = results.analyse(rundir.find(arguments.runs, arguments.run))
    found = advice.advise(analysis)
    if arguments.check:
        ran = advice.check(found, results.analyse(rundir.find(arguments.runs, arguments.check)))
        if arguments.json:
            return shell.put("reports-advise", {"advice": [advice.row(it.advice, it) for it in ran]})
        for checked in ran:
            print(checked.line)
        return 0
    if arguments.json and not arguments.suite:
        return shell.put("reports-advise", {"advice": [advice.row(it) for it in found]})
    for it in found:
        print(f"{it.cell.case}, {it.cell.nodes} nodes: {it.words}: predicted {100 * it.gain:+.1f} % samples/s")
    if arguments.suite:
        arguments.suite.write_text(advice.suite_text(analysis, settings_first(found)[: arguments.most]))
        print(f"check it: python -m bench run --suite {arguments.suite}")
        print(f"then:     python -m reports advise {arguments.run} --check {arguments.suite.stem}")
    elif not found:
        print("nothing that can be changed is predicted to win a percent or more")
    return 0


def settings_first(found: list[advice.Advice]) -> list[advice.Advice]:
    """What costs nothing but a setting before what needs other links."""
    return sorted(found, key=lambda it: it.link_mbps is not None)


def of_advise(command: argparse.ArgumentParser) -> None:
    """Arguments of `advise`."""
    command.add_argument("run", metavar="RUN", help="a run with paced compute and a link rate")
    command.add_argument("--suite", type=Path, metavar="FILE.toml", help="write a suite that measures the advice")
    command.add_argument("--most", type=int, default=3, metavar="N", help="pieces of advice in it (default: 3)")
    command.add_argument("--check", metavar="RUN", help="a run of that suite: predicted and measured gains")


def of_predict(command: argparse.ArgumentParser) -> None:
    """Arguments of `predict`."""
    command.add_argument("run", metavar="RUN", help="a run whose block a is done and whose block b has not begun")


def foretell(arguments: argparse.Namespace) -> int:
    """Say what a run's recovery costs would mean on many nodes; 1 if a held-out run shows the forecast to be wrong."""
    found = known.known(recovery.analyse(rundir.find(arguments.runs, arguments.run)))
    if not found:
        raise rundir.RunDirError(f"{arguments.run}: no recovery and checkpoint were measured")
    asked = known.Asked(arguments.nodes, arguments.mtbf_node_hours, arguments.repair_hours, arguments.price)
    scores = held_out(arguments, found) if arguments.held_out else []
    if arguments.json:
        shell.put("reports-forecast", outlook.document(found, asked, scores))
    for line in () if arguments.json else outlook.lines(found, asked):
        print(line)
    for score, mechanism in () if arguments.json else scores:
        print(outlook.told(score, mechanism))
    return int(not all(score.close for score, _ in scores))


def held_out(arguments: argparse.Namespace, found: Sequence[known.Known]) -> list[tuple[known.Score, str]]:
    """The forecast beside another run, with the recovery strategy of each score.

    Raises:
        RunDirError: that run has nothing to compare with.
    """
    other = recovery.analyse(rundir.find(arguments.runs, arguments.held_out))
    scores = [(score, it.mechanism) for it in found for score in known.held_out(it, other)]
    if not scores:
        raise rundir.RunDirError(f"{arguments.held_out}: no job of the same mechanism with faults and checkpoints")
    return scores


def of_forecast(command: argparse.ArgumentParser) -> None:
    """Arguments of `forecast`."""
    command.add_argument("run", metavar="RUN", help="a chaos run")
    command.add_argument(
        "--nodes", type=counts, default=known.NODES, metavar="N,N,…", help="for so many nodes (default: 8 to 16384)"
    )
    command.add_argument(
        "--mtbf-node-hours", type=positive, default=failures.mtbf_node_hours(), metavar="H",
        help="hours of one node between two failures (default: of the published record, %(default).0f)",
    )  # fmt: skip
    command.add_argument(
        "--repair-hours", type=positive, default=known.REPAIR_HOURS, metavar="H",
        help="that a failed node is away (default: %(default)g)",
    )  # fmt: skip
    command.add_argument("--price", type=positive, metavar="P", help="of one node for an hour, in any currency")
    command.add_argument("--held-out", metavar="RUN", help="set the forecast beside a run at another rate of faults")


def judged(run: rundir.RunDir) -> Mapping[str, Any]:
    """The document `results.json` of a run of either kind, made anew: what lies beside the run is not believed."""
    if recovery.is_chaos(results.read_document(run, "plan")):
        return recovery.analyse(run).results
    return bottlenecks.added(results.analyse(run)).results


def check(arguments: argparse.Namespace) -> int:
    """Hold a run to constraints; 1 if one fails or cannot be told."""
    constraints = [it for file in arguments.require for it in gate.read(file)]
    constraints += [gate.parsed(text, "--that") for text in arguments.that]
    if not constraints:
        raise rundir.RunDirError("check: nothing to check; allowed: --require FILE, --that CONSTRAINT or both")
    found = gate.judge(constraints, judged(rundir.find(arguments.runs, arguments.run)))
    if arguments.json:
        shell.put("reports-check", {"constraints": found})
    for line in () if arguments.json else gate.lines(found):
        print(line)
    return gate.status(found)


def of_check(command: argparse.ArgumentParser) -> None:
    """Arguments of `check`."""
    command.add_argument("run", nargs="?", metavar="RUN", help="a run (default: the newest)")
    words = 'a TOML file: require = ["goodput >= 0.95", "efficiency{nodes=4} >= 0.9"]; may be given again; shipped: '
    words += ", ".join(gate.shipped())
    found = command.add_argument("--require", type=gate.file, action="append", default=[], metavar="FILE", help=words)
    found.completer = lambda **_: gate.shipped()  # type: ignore[attr-defined]
    command.add_argument(
        "--that", action="append", default=[], metavar="CONSTRAINT", help="one constraint; may be given again"
    )


def as_junit(arguments: argparse.Namespace) -> int:
    """Print or write a run's verdicts and faults as JUnit XML."""
    made = junit.text(judged(rundir.find(arguments.runs, arguments.run)), strict=arguments.strict)
    if arguments.out:
        arguments.out.write_text(made)
    else:
        print(made, end="")
    return 0


def of_junit(command: argparse.ArgumentParser) -> None:
    """Arguments of `junit`."""
    command.add_argument("run", nargs="?", metavar="RUN", help="a run (default: the newest)")
    command.add_argument("--out", type=Path, metavar="FILE", help="write it there (default: stdout)")
    command.add_argument("--strict", action="store_true", help="what cannot be told is an error, not skipped")


def counts(text: str) -> tuple[int, ...]:
    """Node counts from the command line."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() and 1 <= int(part) <= MOST_NODES for part in parts):
        raise argparse.ArgumentTypeError(f"{text}: must be whole numbers from 1 to {MOST_NODES}, such as 8,64,16384")
    return tuple(int(part) for part in parts)


def positive(text: str) -> float:
    """A rate, a time or a price from the command line."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: must be above 0")
    return value


Arguments = Callable[[argparse.ArgumentParser], None]
COMMANDS: dict[str, tuple[Callable[[argparse.Namespace], int], str, Arguments]] = {
    "compare": (compare, "Is B slower than A, beyond noise? Exit status 1 if it is.", of_compare),
    "index": (index, "Write index.html over all runs: verdicts, headline figures, trends.", of_index),
    "trend": (trends, "Where did figures change over many runs, and at which commit?", of_trend),
    "advise": (advise, "What would make it faster, by how much, and was that right?", of_advise),
    "forecast": (foretell, "What a chaos run's recovery costs would mean on many nodes: predicted.", of_forecast),
    "check": (check, "Hold a run to constraints; exit status 1 unless all are shown to hold.", of_check),
    "junit": (as_junit, "Verdicts and faults of a run as JUnit XML.", of_junit),
    "undecided": (undecided, "Say what the repeats of a run under way have not decided yet.", of_predict),
    "predict": (predict, "Predict the sizes that are still to run from block a, and seal the prediction.", of_predict),
}


NO_TABLE = ("junit", "predict", "undecided")
"""Commands that print none, and so have no `--json`."""


def parser() -> shell.Parser:
    """The command line of these commands."""
    made = shell.Parser(prog="python -m reports")
    sub = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (function, words, arguments) in COMMANDS.items():
        command = sub.add_parser(name, help=words, description=words)
        command.add_argument(
            "--runs", type=Path, default=shell.RUNS, metavar="DIR", help="where runs are kept (default: runs)"
        )
        command.set_defaults(function=function)
        if name not in NO_TABLE:
            shell.of_json(command)
        arguments(command)
    return made
