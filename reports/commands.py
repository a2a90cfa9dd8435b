"""What each command of `pg reports` does. Called by `reports.cli`.

Each returns its exit status: 0 fine, 1 something got worse or failed, 2 the caller's mistake (raised as RunDirError).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from proving_ground.bench import rundir, shell
from proving_ground.reports import document, gallery, gate, junit, looks, verdicts
from proving_ground.reports.arguments import shipped
from proving_ground.reports.attempts import Attempts
from proving_ground.reports.comparing import comparison, overlay, pairing, series
from proving_ground.reports.comparing.compare import MARGIN, WORSE, overall
from proving_ground.reports.publish import Kind, noted, printed, publish
from proving_ground.reports.recovery import forecast as known
from proving_ground.reports.recovery import outlook
from proving_ground.reports.recovery import report as recovered
from proving_ground.reports.recovery import results as recovery
from proving_ground.reports.scaling import advice, bottlenecks, checks, forecast, page, results, terminal
from proving_ground.reports.scaling.cost import Price
from proving_ground.training.typed import unknown


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
    chaos = [recovery.is_chaos(document.read_document(rundir.find(arguments.runs, name.partition(":")[0]), "plan"))
             for name in names]  # fmt: skip
    if any(chaos):
        return beside(arguments, names, alike=all(chaos))
    first, *others = (pairing.load(arguments.runs, name) for name in names)
    margin = 100 * MARGIN if arguments.margin is None else arguments.margin
    made = [compared(arguments.runs, first, other, margin) for other in others]
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
        print(f"check it: pg bench run --suite {arguments.suite}")
        print(f"then:     pg reports advise {arguments.run} --check {arguments.suite.stem}")
    elif not found:
        print("nothing that can be changed is predicted to win a percent or more")
    return 0


def settings_first(found: list[advice.Advice]) -> list[advice.Advice]:
    """What costs nothing but a setting before what needs other links."""
    return sorted(found, key=lambda it: it.link_mbps is not None)


def foretell(arguments: argparse.Namespace) -> int:
    """Say what a run's recovery costs would mean on many nodes; 1 if a held-out run shows the forecast to be wrong."""
    found = known.known(recovery.analyse(rundir.find(arguments.runs, arguments.run)))
    if not found:
        raise rundir.RunDirError(f"{arguments.run}: no recovery and checkpoint were measured")
    nodes, repair_hours = arguments.nodes or known.NODES, arguments.repair_hours or known.REPAIR_HOURS
    asked = known.Asked(nodes, arguments.mtbf_node_hours, repair_hours, arguments.price)
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


def judged(run: rundir.RunDir) -> Mapping[str, Any]:
    """The document `results.json` of a run of either kind, made anew: what lies beside the run is not believed."""
    if recovery.is_chaos(document.read_document(run, "plan")):
        return recovery.analyse(run).results
    return bottlenecks.added(results.analyse(run)).results


def check(arguments: argparse.Namespace) -> int:
    """Hold a run to constraints; 1 if one fails or cannot be told."""
    constraints = [it for file in arguments.require for it in gate.read(spelled(file))]
    constraints += [gate.parsed(text, "--that") for text in arguments.that]
    if not constraints:
        raise rundir.RunDirError("check: nothing to check; allowed: --require FILE, --that CONSTRAINT or both")
    found = gate.judge(constraints, judged(rundir.find(arguments.runs, arguments.run)))
    if arguments.json:
        shell.put("reports-check", {"constraints": found})
    for line in () if arguments.json else gate.lines(found):
        print(line)
    return gate.status(found)


def spelled(file: Path) -> Path:
    """A file of constraints, unless it is none and its name none of those that ship.

    Raises:
        RunDirError: says which was meant.
    """
    if file.suffix or file.exists():
        return file
    raise rundir.RunDirError(f"{unknown('constraints', str(file), shipped())}; or a file")


def as_junit(arguments: argparse.Namespace) -> int:
    """Print or write a run's verdicts and faults as JUnit XML."""
    made = junit.text(judged(rundir.find(arguments.runs, arguments.run)), strict=arguments.strict)
    if arguments.out:
        arguments.out.write_text(made)
    else:
        print(made, end="")
    return 0


def report(arguments: argparse.Namespace) -> int:
    """Analyse, write, print; a run whose plan has faults gets the recovery report, every other the scaling report."""
    run = rundir.find(arguments.runs, arguments.run)
    shows = "json" if arguments.json else "quiet" if arguments.quiet else ""
    html, price = not arguments.no_html, Price(arguments.price_per_node_hour, arguments.deadline_hours)
    chaos = recovery.is_chaos(document.read_document(run, "plan"))
    if chaos:
        value = verdicts.overall(recovered.report(run, html=html, node_hour=price.node_hour, shows=shows))
    else:
        value = verdicts.overall(scaling(run, price, html=html, shows=shows))
    return int(value == verdicts.FAIL or (arguments.strict and value == verdicts.UNKNOWN))


def scaling(run: rundir.RunDir, price: Price, *, html: bool, shows: str = "") -> list[verdicts.Verdict]:
    """The scaling report of one run; its verdicts."""
    bare = results.analyse(run, price)
    tried = Attempts()
    analysis = tried.made("what stands in the way", lambda: bottlenecks.added(bare), bare)
    place = f"{looks.shown_path(run)}/report.html" if html else looks.NO_HTML
    return publish(
        noted(analysis, tried),
        Kind(page.SECTIONS, page.write, printed(terminal, shows)),
        place,
        html=html,
    )
