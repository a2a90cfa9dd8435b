"""What each command of `pg serving` does: `serving.cli` has them in a table.

torch and MLflow are imported once they are needed, so that `--help` is quick.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from proving_ground.bench import rundir
from proving_ground.bench.redact import redacted
from proving_ground.bench.rundir import RunDir, RunDirError
from proving_ground.bench.shell import put
from proving_ground.bench.start import ended_at_once
from proving_ground.reports import verdicts
from proving_ground.serving import servers
from proving_ground.serving.mistakes import FailedError, ServingError

if TYPE_CHECKING:
    from proving_ground.reports.gate import Constraint

ENGINE_NAMES = tuple(servers.ENGINES)
LEAST_S = 2  # of a level


def say(line: str) -> None:
    """Tell what goes on, beside what a command prints."""
    print(line, file=sys.stderr, flush=True)


def tracking_uri(options: argparse.Namespace) -> str:
    """The registry that is meant."""
    from proving_ground.monitoring.mlflow_store import local_uri  # noqa: PLC0415 - MLflow

    return str(options.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or local_uri(options.runs))


@contextlib.contextmanager
def model_of(options: argparse.Namespace) -> Iterator[tuple[Path, str]]:
    """The model's folder, and its name: NAME/VERSION, or that folder. One out of the registry is gone afterwards."""
    if Path(options.model).is_dir():
        folder = Path(options.model).resolve()
        yield folder, str(folder)
        return
    with ended_at_once("serving"):
        from proving_ground.serving import registry  # noqa: PLC0415 - MLflow

    with registry.fetched(options.model, tracking_uri(options)) as found:
        yield found


def register(options: argparse.Namespace) -> int:
    """Register a model, or say which version it is already."""
    with ended_at_once("serving"):
        from proving_ground.serving import registry, source  # noqa: PLC0415 - torch and MLflow

    uri = tracking_uri(options)
    found = source.find(options.what, options.runs, options.run, incomplete=options.incomplete)
    for line in found.passed_over:
        say(f"passed over: {line}")
    made = registry.register(found, options.name, uri, say)
    print(f"{made.name}/{made.version}: {'registered' if made.new else 'is registered already'}; {redacted(uri)}")
    tag = {key.removeprefix(registry.PREFIX): it for key, it in made.tags.items()}
    print(f"  {tag['checkpoint']}, step {tag['step']}, sha256 {tag['checkpoint_sha256']}")
    sealed = f"run {tag['run_id']}, seal {tag['seal_sha256']}"
    print(f"  {sealed if tag['run_id'] != source.UNKNOWN else 'of no sealed run: where it was trained is not proven'}")
    return 0


def check(options: argparse.Namespace) -> int:
    """Hold end points, or an older schema, to a model."""
    with ended_at_once("serving"):
        from proving_ground.serving import check as checks  # noqa: PLC0415 - torch
        from proving_ground.serving.model import TOLERANCE  # noqa: PLC0415 - same

    headers = headers_of(options)
    with model_of(options) as (model, _), contextlib.ExitStack() as stack:
        if options.schema:
            checks.same_schema(model, options.schema)
            print(f"same schema: {options.schema}")
            if not options.endpoint:
                return 0
        urls = options.endpoint or [
            stack.enter_context(servers.running(model, engine, 0, 1, say)).url for engine in ENGINE_NAMES
        ]
        scorer, inputs = checks.loaded(model)
        for url in urls:
            same = checks.held_to(scorer, inputs, url, headers)
            print(f"same answers: {redacted(url)}: {same.requests} requests, difference {same.difference:.2g} at most "
                  f"(allowed {TOLERANCE:g}), {same.refusals} wrong requests not answered as right ones")  # fmt: skip
    return 0


def headers_of(options: argparse.Namespace) -> dict[str, str]:
    """What an end point's requests have to have, out of the variables.

    Raises:
        ServingError: one is not set.
    """
    if options.header and not options.endpoint:
        raise ServingError("--header: is for --endpoint")
    for name, variable in options.header:
        if variable not in os.environ:
            raise ServingError(f"--header {name}: the variable {variable} is not set")
    return {name: os.environ[variable] for name, variable in options.header}


def serve(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    engine, replicas = engine_of(options)
    with (
        model_of(options) as (model, name),
        servers.running(model, engine, options.port, replicas, say) as end_point,
    ):
        print(f"serving {name} at {end_point.url}; Ctrl-C ends it", flush=True)
        for it in end_point.replicas:
            print(f"  {it.name}: port {it.port}, process group {it.process.pid}", flush=True)
        watch(end_point)
    return 0


def engine_of(options: argparse.Namespace) -> tuple[str, int]:
    """Which kind of server, and how many."""
    return options.engine or ENGINE_NAMES[0], options.replicas or 1


def watch(end_point: servers.EndPoint) -> None:
    """Wait for Ctrl-C; say of a replica that it has ended.

    Raises:
        FailedError: none is left, or HAProxy is not.
    """
    left, wait = list(end_point.replicas), threading.Event()
    while left:
        wait.wait(0.5)
        if end_point.proxy and end_point.proxy.process.poll() is not None:
            raise FailedError(ending(end_point.proxy))
        for it in [it for it in left if it.process.poll() is not None]:
            say(ending(it))
            left.remove(it)
    raise FailedError("no replica is left")


def ending(server: servers.Replica) -> str:
    """That a server has ended, and how."""
    return f"{server.name} has ended with {server.process.returncode}: {servers.last_words(server.log)}"


def load(options: argparse.Namespace) -> int:
    """Put load on an end point that is up, or on one that is started for it; 1 unless every check passes."""
    if options.seconds < LEAST_S:
        raise ServingError(f"--seconds {options.seconds}: must be at least {LEAST_S}: the first is left out")
    engine, replicas = engine_of(options)
    if options.endpoint and (options.engine or options.replicas):
        raise ServingError("--engine and --replicas: are of an end point that is started here, not of --endpoint")
    if options.kill and (options.endpoint or replicas < 2):
        raise ServingError("--kill: needs --replicas 2 or more, and no --endpoint: only what is ours is killed")
    with ended_at_once("serving"):
        from proving_ground.reports import gate  # noqa: PLC0415 - numpy
        from proving_ground.serving import check as checks  # noqa: PLC0415 - torch
        from proving_ground.serving import load as loads  # noqa: PLC0415 - as the others
        from proving_ground.serving.model import LINEAGE  # noqa: PLC0415 - same

    headers = headers_of(options)
    constraints = [gate.parsed(it, "--that") for it in options.that]
    with model_of(options) as (model, name), contextlib.ExitStack() as stack:
        scorer, inputs = checks.loaded(model)
        answer = {name: it.tolist() for name, it in checks.answer_of(scorer, inputs).items()}
        lineage = json.loads((checks.data_of(model) / LINEAGE).read_text())
        about: dict[str, object] = {"model": name, "lineage": lineage, "told": told(constraints)}
        urls, own = options.endpoint, None
        if not urls:
            own = stack.enter_context(servers.running(model, engine, 0, replicas, say))
            urls, about = [own.url], {**about, "engine": engine, "replicas": replicas}
        for url in urls:
            checks.held_to(scorer, inputs, url, headers)
        orders = loads.Orders(urls, options.users, options.seconds, options.repeats, options.kill)
        run = loads.new_run(options.runs)
        loads.put(orders, loads.Example({"inputs": inputs}, answer, headers), run, about, own)
    return reported(run, constraints, json=options.json)


def told(constraints: Sequence[Constraint]) -> list[dict[str, object]]:
    """What an end point's callers were told, for its monitoring: the bounds of how long a request takes.

    Raises:
        ServingError: a bound is of something else than milliseconds, or of users that are no number.
    """
    for it in constraints:
        if it.name in ("p99", "longest") and not (it.unit in ("", "ms") and it.labels.get("users", "1").isdecimal()):
            raise ServingError(f"--that {it.text}: {it.name} is in ms, and users are a whole number")
    return [
        {"figure": it.name, "users": int(it.labels["users"]) if "users" in it.labels else None,
         "seconds": it.bound / 1000}
        for it in constraints if it.name in ("p99", "longest") and it.sign in ("<", "<=")
    ]  # fmt: skip


def reported(run: RunDir, constraints: Sequence[Constraint] = (), *, json: bool = False) -> int:
    """Figures, page and table of a load, or one document, and whether its checks pass and the constraints hold.

    Raises:
        FailedError: it was put on and recorded, and not whole: a machine that stood still, say.
    """
    from proving_ground.reports import gate  # noqa: PLC0415 - numpy
    from proving_ground.serving import figures, page  # noqa: PLC0415 - matplotlib

    try:
        found = figures.read(run)
    except RunDirError as error:
        raise FailedError(str(error)) from None
    made = figures.document(found)
    run.write("results", made)
    rundir.write_atomic(run.report, page.html(found, made))
    held = gate.judge(constraints, made)
    if json:
        put("serving-load", {
            "run": run.path, "report": run.report, "constraints": held, "verdicts": made["verdicts"],
            "figures": made["figures"],
        })  # fmt: skip
    else:
        told = gate.lines(held) if held else ()
        print("\n".join([*page.table(found, made), *told, f"report: {run.report}"]))
    return int(figures.overall(made) != verdicts.PASS or gate.status(held))
