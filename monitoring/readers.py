"""The commands of `pg monitoring` that show a run to a person or to another tool. Called by its `cli`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from proving_ground.bench import loglines, rundir
from proving_ground.bench.redact import redacted
from proving_ground.bench.shell import Commands, of_json, put
from proving_ground.bench.terminal import Terminal
from proving_ground.monitoring import (
    advice,
    availability,
    live,
    live_search,
    logs,
    openmetrics,
    searches,
    traces,
    tracked_search,
    tracking,
)
from proving_ground.monitoring.mistakes import MonitoringError


def show_live(options: Namespace) -> int:
    """Show a run, or a search, until it ends."""
    if search := a_search(options):
        return live_search.watch(search, Terminal())
    return live.watch(rundir.find(options.runs, options.run), Terminal())


def a_search(options: Namespace) -> rundir.RunDir | None:
    """The search that a path names; None where it names none."""
    path = Path(options.run or "")
    is_one = bool(options.run) and (path / f"{searches.DOCUMENT}.json").exists()
    return rundir.RunDir(path.resolve()) if is_one else None


def ship_logs(options: Namespace) -> int:
    """Send a run's logs to Loki."""
    run = rundir.find(options.runs, options.run)
    print(f"{logs.ship(run, options.loki)} lines of run {run.run_id} sent to {options.loki}")
    return 0


def of_ship_logs(command: ArgumentParser) -> None:
    """Options of `ship-logs`."""
    of_run(command)
    command.add_argument("--loki", required=True, metavar="URL", help="where Loki answers, such as http://loki:3100")


def trace(options: Namespace) -> int:
    """Write a trace file, or send the spans to a collector."""
    if not (options.out or options.otlp):
        raise MonitoringError("trace: nowhere to put it; allowed: --out FILE, --otlp URL or both")
    if options.out and not options.out.parent.is_dir():
        raise MonitoringError(f"--out {options.out}: there is no folder {options.out.parent}")
    run = rundir.find(options.runs, options.run)
    found = list(traces.spans(run, traces.Wanted(options.trial, options.step)))
    if options.out:
        traces.write_chrome(found, options.out, origin_t=min(it.begin_t for it in found))
        print(f"{options.out}: {len(found)} spans of run {run.run_id}; open it in ui.perfetto.dev or chrome://tracing")
    if options.otlp:
        from proving_ground.monitoring import otlp  # noqa: PLC0415 - takes a second that the other commands need not wait

        sent = otlp.export(found, options.otlp, run.run_id, loglines.clock(run))
        print(f"{sent} spans of run {run.run_id} sent to {options.otlp}")
    return 0


def of_trace(command: ArgumentParser) -> None:
    """Options of `trace`."""
    of_run(command)
    command.add_argument("--step", type=int, metavar="N", help="only this step, on all ranks (default: everything)")
    command.add_argument("--trial", metavar="ID", help="only this trial, such as t003")
    command.add_argument("--out", type=Path, metavar="FILE", help="write a Chrome trace, which Perfetto reads too")
    command.add_argument("--otlp", metavar="URL", help="send it to this OpenTelemetry collector, by HTTP")


def track(options: Namespace) -> int:
    """Follow a run, or a search, into MLflow until it ends."""
    from proving_ground.monitoring import mlflow_store  # noqa: PLC0415 - takes seconds that the other commands need not wait

    if options.patience < 0:
        raise MonitoringError(f"--patience {options.patience:g}: allowed: 0 or more seconds")
    search = a_search(options)
    run = search or rundir.find(options.runs, options.run)
    reading = tracked_search.of_search(run) if search else tracking.of_run(run)
    plan = tracked_search.PLAN if search else run.read("plan")
    uri = options.uri or mlflow_store.local_uri(options.runs)
    store = mlflow_store.MlflowStore(run, uri, plan, model=options.model)
    kept = tracking.track(run, reading, store, lambda words: print(words, flush=True), options.patience)
    print(f"{kept:,} values of {'search' if search else 'run'} {run.run_id} in {redacted(uri)}")
    return 0


def of_track(command: ArgumentParser) -> None:
    """Options of `track`."""
    of_run(command)
    command.add_argument("--uri", metavar="URI", help="MLflow's tracking URI (default: mlflow.db beside the runs)")
    command.add_argument(
        "--model", action="store_true", help="also keep each trial's newest checkpoint, if it is still there"
    )
    command.add_argument(
        "--patience", type=float, default=3600, metavar="SECONDS",
        help="how long the server may be away before this ends with status 1 (default: 3600)",
    )  # fmt: skip


def write_dashboards(options: Namespace) -> int:
    """Write Grafana's dashboards."""
    from proving_ground.monitoring import dashboards  # noqa: PLC0415 - Grafana's SDK, which the other commands do not need

    for file in dashboards.write(options.out or dashboards.FOLDER):
        print(file)
    return 0


def of_dashboards(command: ArgumentParser) -> None:
    """Options of `dashboards`."""
    command.add_argument(
        "--out", type=Path, metavar="DIR", help="folder for the files (default: monitoring/dashboards)"
    )


def advise(options: Namespace) -> int:
    """Say what would help."""
    run = rundir.find(options.runs, options.run)
    told = list(advice.lines(run))
    if options.json:
        return put("monitoring-advice", {"run": run.run_id, **advice.document(run)})
    print(
        "\n".join(told) if told else f"run {run.run_id}: nothing is beyond its limit, and nothing is predicted to win"
    )
    return 0


def show_openmetrics(options: Namespace) -> int:
    """Print a run's figures for Prometheus."""
    print(openmetrics.text(rundir.find(options.runs, options.run)), end="")
    return 0


def show_availability(options: Namespace) -> int:
    """Say in which share of their time jobs made progress."""
    skipped: list[str] = []
    if options.json:
        found = availability.rows(availability.chosen(options.runs, options.run), skipped)
        return put("monitoring-availability", {"runs": found, "left_out": skipped})
    for line in availability.lines(availability.chosen(options.runs, options.run), skipped):
        print(line)
    for line in skipped:
        print(f"left out: {line}")
    return 0


def of_availability(command: ArgumentParser) -> None:
    """Which runs."""
    command.add_argument("run", nargs="*", help="paths, run ids or suites' names (default: all runs)")
    of_json(command)


def of_advice(command: ArgumentParser) -> None:
    """Which run, for whom."""
    of_run(command)
    of_json(command)


def of_run(command: ArgumentParser) -> None:
    """Which run."""
    command.add_argument(
        "run", nargs="?", default="latest", help="a path, a run id, a suite's name (default: the newest)"
    )


COMMANDS: Commands = {
    "live": (show_live, "Show a run in progress on one page, until it ends.", of_run),
    "ship-logs": (ship_logs, "Send a run's logs to Loki, with rank and step.", of_ship_logs),
    "track": (track, "Follow a run, or a search, into MLflow: parameters, metrics, artefacts.", of_track),
    "advice": (advise, "Say what would help a run, and what it is predicted to win.", of_advice),
    "availability": (
        show_availability,
        "Measure from recorded runs in which share of time jobs make progress.",
        of_availability,
    ),
    "openmetrics": (show_openmetrics, "Print the figures and verdicts of a reported run as OpenMetrics.", of_run),
    "dashboards": (write_dashboards, "Write Grafana's dashboards as JSON.", of_dashboards),
    "trace": (trace, "Write a run's trace, or one step of all ranks, for Perfetto or OpenTelemetry.", of_trace),
}
