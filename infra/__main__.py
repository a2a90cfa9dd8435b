"""The command line of `infra`: `python -m infra --help`.

Exit status 0 fine, 1 not done, 2 the caller's mistake, 130 interrupted.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from infra import backup, chart, config, cost, health, image, life, naming, outputs, scaling, spent, trouble
from infra.cluster.images import IMAGES
from infra.reading import ConfigError

HEALTH_EVERY_S = 30
NOTES = life.QUEUE.with_name("notes.log")


def main(argv: Sequence[str] | None = None) -> int:
    """Do one command."""
    given = _parser().parse_args(argv)
    try:
        return int(given.do(given))
    except ConfigError as error:
        print(f"infra: {error}", file=sys.stderr)
        return 2
    except image.ImageError as error:
        print(f"infra: {error}", file=sys.stderr)
        return 1
    except life.InterruptedStackError:
        print("infra: interrupted; what was begun is finished or noted: run the command again", file=sys.stderr)
        return 130
    except life.StackError as error:
        found = trouble.classify(str(error))
        print(f"infra: {found.kind}: {trouble.why(str(error))} ({found.advice})", file=sys.stderr)
        return found.status
    except KeyboardInterrupt:
        print("infra: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m infra", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    check = _command(commands, "check", _check, "validate the configuration of stacks; creates nothing")
    check.add_argument("stacks", nargs="*", metavar="STACK")
    estimate = _command(commands, "cost", _cost, "estimate what a stack costs")
    _one_stack(estimate)
    estimate.add_argument("--hours", type=_hours, default=1.0, help="for this long (default: 1)")
    estimate.add_argument("--prices", type=Path, default=cost.SHIPPED, help="another table, from `prices`")
    prices = _command(commands, "prices", _prices, "fetch today's public retail prices into a file")
    prices.add_argument("region", metavar="REGION")
    prices.add_argument("file", type=Path, metavar="FILE")
    for name, do, text in (
        ("preview", _preview, "say what `up` would do"),
        ("up", _up, "make or change a stack, with fall-back over machine sizes; queue it where there is no machine"),
        ("down", _down, "take a stack away"),
        ("mend", _mend, "after an `up` or `down` that was killed: open its lock, compare its state with what there is"),
        ("outputs", _outputs, "say where things are: what the stack exports, without its secrets"),
        ("reap", _reap, "take a stack away if its time to live or its budget is over; run it from a schedule"),
    ):
        _one_stack(_command(commands, name, do, text))
    commands.choices["reap"].add_argument(
        "--spent", type=float, help="dollars spent this month (default: as Azure says)"
    )
    commands.choices["down"].add_argument(
        "--cluster-gone", action="store_true", help="its API server exists no more: forget what was on it"
    )
    keep = _command(commands, "backup", _backup, "send checkpoints or a run directory to object storage")
    keep.add_argument("folder", type=Path, metavar="FOLDER")
    back = _command(commands, "restore", _restore, "bring a backup back, every file verified")
    back.add_argument("folder", type=Path, metavar="FOLDER", help="must not exist yet")
    back.add_argument("--at", help="which one, by its time (default: the newest)")
    for command in (keep, back):
        command.add_argument("--name", required=True, help="what it is called there, e.g. prod")
        command.add_argument("--container", required=True, help="https://ACCOUNT.blob.core.windows.net/backups")
    keep.add_argument("--keep", type=int, default=14, help="forget older ones beyond this many (default: 14)")
    _image_commands(commands)
    _command(commands, "chart", _chart, "write the Helm chart again from the manifests")
    well = _command(commands, "health", _health, "nodes by pool, and pods that are not well; status 1 if any is not")
    _one_stack(well)
    well.add_argument("--watch", action="store_true", help="every 30 s, until interrupted")
    again = _command(commands, "retry", _retry, "try the queued stacks again, and pools that get no machine; tells so")
    again.add_argument(
        "stacks", nargs="*", metavar="STACK", help="that are up: pools that do not grow get another size"
    )
    return parser


def _image_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """What is about the project's own images."""
    made = _command(commands, "image", _image, "build an image with buildah; says its size, lists its parts")
    made.add_argument("which", choices=image.FILES)
    made.add_argument("--tag", help="its name (default: as on the cluster)")
    made.add_argument("--torch-index", default="", metavar="URL", help="PyTorch's index of CPU wheels")
    made.add_argument("--bill", type=Path, metavar="FILE", help="write the bill of materials here (CycloneDX)")
    _command(commands, "pin", _pin, "add their base image's digest to the Dockerfiles; needs skopeo and a registry")


def _hours(text: str) -> float:
    """Hours that are some."""
    try:
        hours = float(text)
    except ValueError:
        hours = math.nan
    if not 0 < hours < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: must be a number above 0")
    return hours


def _one_stack(command: argparse.ArgumentParser) -> None:
    """Which stack: `dev`, or `--stack dev`."""
    either = command.add_mutually_exclusive_group(required=True)
    either.add_argument("stack", nargs="?", metavar="STACK", default=argparse.SUPPRESS)
    either.add_argument("--stack", dest="stack", metavar="STACK", default=argparse.SUPPRESS)


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    do: Callable[[argparse.Namespace], int],
    text: str,
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(do=do)
    return parser


def _check(given: argparse.Namespace) -> int:
    for stack in given.stacks or config.known():
        environment = config.load(stack)
        nodes = sum(pool.max_nodes for pool in environment.pools)
        print(f"{stack}: fine; {len(environment.pools)} pools, at most {nodes} nodes")
    return 0


def _cost(given: argparse.Namespace) -> int:
    prices = cost.load(given.prices)
    made = cost.estimate(config.load(given.stack), prices, given.hours)
    print(f"{'pool':<10} {'size':<30} {'nodes':>7} {'on demand':>10} {'spot':>8} {'counted, USD/h each':>20}")
    for line in made.lines:
        known = cost.price(prices, line.sku)
        size = f"{line.sku}{' spot' if line.spot else ''}"
        each = f"{known.on_demand:.3f}", "?" if known.spot is None else f"{known.spot:.3f}"
        counted = f"{line.usd_per_hour:.3f}{' assumed' if line.assumed else ''}"
        print(f"{line.name:<10} {size:<30} {f'{line.least}-{line.most}':>7} {each[0]:>10} {each[1]:>8} {counted:>20}")
    print(f"{given.stack}: ${made.least:,.2f} to ${made.most:,.2f} for {given.hours:g} h of machines (predicted)")
    print(f"prices: {prices.region}, as of {prices.as_of}; source: {prices.source}")
    print("of a run, before: python -m bench plan --price-per-node-hour P; after: python -m reports RUN the same")
    return 0


def _prices(given: argparse.Namespace) -> int:
    cost.save(cost.fetch(cost.load(), given.region, _now().date().isoformat()), given.file)
    print(f"{given.file}: prices of {given.region}")
    return 0


def _open(stack: str) -> life.Stack:
    from infra.stacks import PulumiStack  # noqa: PLC0415 - the other commands work without pulumi

    return PulumiStack(stack, print)


def _preview(given: argparse.Namespace) -> int:
    config.load(given.stack)
    _open(given.stack).preview()
    return 0


def _up(given: argparse.Namespace) -> int:
    environment = config.load(given.stack)
    result = life.provision(_open(given.stack), environment, print)
    if result.outcome == "queued":
        life.enqueue(given.stack, result, _now())
        _tell(f"{given.stack} waits for machines: {result.steps[-1]}")
    else:
        life.dequeue(given.stack)
    print(f"{given.stack}: {result.outcome}")
    return 0 if result.outcome == "up" else result.status


def _down(given: argparse.Namespace) -> int:
    config.load(given.stack)
    _open(given.stack).destroy(cluster_gone=given.cluster_gone)
    life.dequeue(given.stack)
    return 0


def _mend(given: argparse.Namespace) -> int:
    config.load(given.stack)
    _open(given.stack).mend()
    print(f"{given.stack}: in order; run `up` or `down` again")
    return 0


def _outputs(given: argparse.Namespace) -> int:
    where = outputs.load(given.stack)
    for item in dataclasses.fields(where):
        if item.name not in outputs.SECRETS:
            print(f"{item.name}: {json.dumps(outputs.plain(getattr(where, item.name)))}")
    return 0


def _reap(given: argparse.Namespace) -> int:
    environment, stack = config.load(given.stack), _open(given.stack)
    created = stack.created()
    paid = _spent(environment) if given.spent is None and created else given.spent
    reason = life.due(environment, created, _now(), paid)
    print(reason or f"{given.stack}: stays")
    if reason:
        _tell(f"taking down {reason}")
        stack.destroy()
    return 0


def _spent(environment: config.Environment) -> float | None:
    """Dollars booked this month; None where there is no cloud, or it does not say: then only the age counts."""
    if environment.azure is None:
        return None
    try:
        where = outputs.load(environment.name).azure
        if where is None:
            return None
        return spent.month_to_date(where.subscription, naming.resource_groups(environment.name), _token())
    except ConfigError as error:
        print(f"infra: {error}; only its age is looked at", file=sys.stderr)
        return None


def _token() -> str:
    from infra.blobs import token  # noqa: PLC0415 - the other commands work without Azure's packages

    return token(f"{spent.API}/.default")


def _health(given: argparse.Namespace) -> int:
    where = outputs.load(given.stack)
    while True:
        found = health.look(where)
        nodes = ", ".join(f"{pool} {ready}/{everyone}" for pool, (ready, everyone) in sorted(found.nodes.items()))
        print(f"{_now():%H:%M:%S} nodes ready: {nodes or 'none'}; not well: {len(found.complaints)}", flush=True)
        print(*found.complaints, sep="\n", end="\n" if found.complaints else "", flush=True)
        if not given.watch:
            return 1 if found.complaints else 0
        time.sleep(HEALTH_EVERY_S)


def _retry(given: argparse.Namespace) -> int:
    queued = list(life.queued())
    if not (queued or given.stacks):
        print("no stack waits")
    done = [_up_again(name, {}) for name in queued] + [_unstick(name) for name in given.stacks if name not in queued]
    return 0 if all(done) else 1


def _unstick(name: str) -> bool:
    """Give pools that want to grow and get no machine the next size of their list; whether the stack is well then."""
    environment, has = config.load(name), _open(name).skus()
    if not has:
        print(f"{name}: has no pools")
        return True
    found = health.look(outputs.load(name))
    instead = scaling.following(environment.pools, has, found.stuck, found.nodes)
    for pool, sku in instead.items():
        print(f"{name}: pool {pool}: {found.stuck[pool]}; now {sku}")
    if not instead:
        print(f"{name}: no pool gets another size")
        return not found.stuck
    return _up_again(name, instead)


def _up_again(name: str, instead: Mapping[str, str]) -> bool:
    result = life.provision(_open(name), config.load(name), print, instead)
    if result.outcome == "up":
        life.dequeue(name)
        _tell(f"{name} is up")
    return result.outcome == "up"


def _backup(given: argparse.Namespace) -> int:
    store = _container(given.container)
    made = backup.backup(store, given.folder, given.name, _now())
    gone = backup.prune(store, given.name, given.keep)
    print(f"{given.name} of {made.taken}: {len(made.files)} files; {len(gone)} older backups forgotten")
    return 0


def _restore(given: argparse.Namespace) -> int:
    made = backup.restore(_container(given.container), given.name, given.folder, given.at)
    print(f"{given.folder}: {len(made.files)} files of {made.taken}, every one verified")
    return 0


def _container(where: str) -> backup.Store:
    from infra.blobs import container  # noqa: PLC0415 - the other commands work without Azure's packages

    return container(where)


def _chart(given: argparse.Namespace) -> int:
    del given
    chart.write()
    print(f"{chart.FOLDER}: written")
    return 0


def _image(given: argparse.Namespace) -> int:
    made = image.build(given.which, given.tag or IMAGES[given.which], given.torch_index)
    if given.bill:
        given.bill.write_text(json.dumps(image.bill(made), indent=1) + "\n")
    print(made)
    return 0


def _pin(given: argparse.Namespace) -> int:
    del given
    for which, file in image.FILES.items():
        print(f"{which}: {image.pin(file)}")
    return 0


def _tell(text: str) -> None:
    problem = life.notify(text, NOTES, os.environ.get("PROVING_GROUND_WEBHOOK"), _now())
    if problem:
        print(problem, file=sys.stderr)


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


if __name__ == "__main__":
    sys.exit(main())
