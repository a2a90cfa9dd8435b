"""What `pg infra` can do; `pg infra COMMAND --help` says more.

Exit status 0 fine, 1 not done, 2 the caller's mistake, 130 interrupted.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import json
import math
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

import argcomplete
import yaml

from proving_ground.infra import backup, chart, config, cost, health, image, life, mljob, operate, outputs, reading
from proving_ground.infra.cluster.images import IMAGES
from proving_ground.infra.reading import ConfigError

HEALTH_EVERY_S = 30
LINE, NAME = 300, 40  # characters of a message and of a name in it
Commands = argparse._SubParsersAction  # noqa: SLF001 - argparse has no public name for it


def run(argv: Sequence[str] | None = None) -> int:
    """Do one command; what goes wrong is one line."""
    parser = _parser()
    argcomplete.autocomplete(parser)
    given = parser.parse_args(argv)
    try:
        return int(given.do(given))
    except ConfigError as error:
        return _complain(error, 2)
    except (image.ImageError, OSError) as error:
        return _complain(error, 1)
    except life.InterruptedStackError:
        print("infra: interrupted; what was begun is finished or noted: run the command again", file=sys.stderr)
        return 130
    except life.StackError as error:
        line, status = life.explained(error)
        print(f"infra: {line}", file=sys.stderr)
        return status


def _complain(error: Exception, status: int) -> int:
    print(f"infra: {_short(str(error))}", file=sys.stderr)
    return status


def _short(message: str) -> str:
    """Beginning and end of what is too long for a line."""
    return message if len(message) <= LINE else f"{message[: LINE - 100]}…{message[-99:]}"


class _Parser(argparse.ArgumentParser):
    """A parser whose refusals are one line, with the name that was meant."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where help is; exit status 2."""
        if found := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message):
            name = found[1][:NAME]
            message = f"unknown {name!r}; {reading.allowed(name, re.findall(r'[a-z-]+', found[2]))}"
        elif found := re.fullmatch(r"unrecognized arguments: (-\S*).*", message):
            message = f"unknown option {found[1]!r}"
        self.exit(2, f"infra: {_short(message)}; help: {self.prog} --help\n")


def _version() -> str:
    try:
        return metadata.version("proving-ground")
    except metadata.PackageNotFoundError:  # a clone can be used as it is
        return "0+not-installed"


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="pg infra", description=__doc__)
    parser.add_argument("--version", action="version", version=f"proving-ground {_version()}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (_looking, _changing, _scheduled, _keeping, _making):
        add(commands)
    return parser


def _looking(commands: Commands[_Parser]) -> None:
    """What changes nothing."""
    check = _command(commands, "check", _check, "validate the configuration of stacks; creates nothing")
    check.add_argument("stacks", nargs="*", metavar="STACK")
    _json(check)
    estimate = _command(commands, "cost", _cost, "estimate what a stack costs")
    _one_stack(estimate)
    estimate.add_argument("--hours", type=_hours, default=1.0, help="for this long (default: 1)")
    estimate.add_argument("--prices", type=Path, default=cost.SHIPPED, help="another table, from `prices`")
    _json(estimate)
    prices = _command(commands, "prices", _prices, "fetch today's public retail prices into a file")
    prices.add_argument("region", metavar="REGION")
    prices.add_argument("file", type=Path, metavar="FILE")
    _one_stack(_command(commands, "preview", operate.preview, "say what `up` would do"))
    where = _command(commands, "outputs", _outputs, "say where things are: what the stack exports, without its secrets")
    _one_stack(where)
    _json(where)
    well = _command(commands, "health", _health, "nodes by pool, and pods that are not well; status 1 if any is not")
    _one_stack(well)
    well.add_argument("--watch", action="store_true", help="every 30 s, until interrupted")


def _changing(commands: Commands[_Parser]) -> None:
    """What a person does to a stack."""
    text = "make or change a stack, with fall-back over machine sizes; queue it where there is no machine"
    up = _command(commands, "up", operate.up, text)
    _one_stack(up)
    up.add_argument("--wait", type=_hours, metavar="HOURS", help="where it is queued, keep trying for this long")
    down = _command(commands, "down", operate.down, "take a stack away")
    _one_stack(down)
    gone = "its API server exists no more: forget what was on it"
    down.add_argument("--cluster-gone", action="store_true", help=gone)
    text = "bring the state in order after a killed command, as `up` and `down` do by themselves on the same machine"
    mend = _command(commands, "mend", operate.mend, text)
    _one_stack(mend)
    mend.add_argument("--force", action="store_true", help="open the lock whoever holds it: look there first")


def _scheduled(commands: Commands[_Parser]) -> None:
    """What a schedule does to stacks."""
    reap = _command(commands, "reap", operate.reap, "take a stack away if its time to live or its budget is over")
    _one_stack(reap)
    reap.add_argument("--spent", type=float, help="dollars spent this month (default: as Azure says)")
    text = "try the stacks again that wait for machines, and pools that get none; tells so"
    again = _command(commands, "retry", operate.retry, text)
    which = (
        "beside those that this machine has queued: up again if it waits, else another size for pools that do not grow"
    )
    again.add_argument("stacks", nargs="*", metavar="STACK", help=which)


def _keeping(commands: Commands[_Parser]) -> None:
    """Backups."""
    keep = _command(commands, "backup", _backup, "send checkpoints or a run directory to object storage")
    keep.add_argument("folder", type=Path, metavar="FOLDER")
    back = _command(commands, "restore", _restore, "bring a backup back, every file verified")
    back.add_argument("folder", type=Path, metavar="FOLDER", help="must not exist yet")
    back.add_argument("--at", help="which one, by its time (default: the newest)")
    for command in (keep, back):
        command.add_argument("--name", required=True, help="what it is called there, e.g. prod")
        command.add_argument("--container", required=True, help="https://ACCOUNT.blob.core.windows.net/backups")
    keep.add_argument("--keep", type=int, default=14, help="forget older ones beyond this many (default: 14)")


def _making(commands: Commands[_Parser]) -> None:
    """The project's own images and chart."""
    made = _command(commands, "image", _image, "build an image with buildah; says its size, lists its parts")
    made.add_argument("which", choices=image.FILES)
    made.add_argument("--tag", help="its name (default: as on the cluster)")
    made.add_argument("--torch-index", default="", metavar="URL", help="PyTorch's index of CPU wheels")
    made.add_argument("--bill", type=Path, metavar="FILE", help="write the bill of materials here (CycloneDX)")
    _command(commands, "pin", _pin, "add their base image's digest to the Dockerfiles; needs skopeo and a registry")
    _command(commands, "chart", _chart, "write the Helm chart again from the manifests")
    job = _command(
        commands, "job", _job, "write the body of an Azure ML job, for a stack's compute; says how it is sent"
    )
    _one_stack(job)
    job.add_argument("--file", type=Path, metavar="FILE", help="where to (default: STACK-job.yaml)")
    job.add_argument("--nodes", type=int, default=1, metavar="N", help="of the compute cluster (default: 1)")
    job.add_argument("--ranks", type=int, metavar="N", help="processes of a node (default: one for each GPU)")
    job.add_argument("--hours", type=_hours, default=4.0, help="after which it is ended (default: 4)")
    job.add_argument("--image", help="with Python, torch and this project (default: the stack's trainer)")
    job.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of `pg training run`; repeatable")


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
    both = (
        either.add_argument("stack", nargs="?", metavar="STACK", default=argparse.SUPPRESS),
        either.add_argument("--stack", dest="stack", metavar="STACK", default=argparse.SUPPRESS),
    )
    for option in both:
        option.completer = lambda **_: config.known()  # type: ignore[attr-defined] # argcomplete's own attribute


def _json(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--json", action="store_true", help="print one JSON document and nothing else (docs/machines.md)"
    )


def _put(kind: str, document: Mapping[str, Any]) -> int:
    """Print a document for machines, with its `schema` before all else."""
    print(json.dumps({"schema": f"proving-ground/{kind}/1", **document}))
    return 0


def _command(
    commands: Commands[_Parser],
    name: str,
    do: Callable[[argparse.Namespace], int],
    text: str,
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(do=do)
    return parser


def _check(given: argparse.Namespace) -> int:
    rows = []
    for stack in given.stacks or config.known() or ["local"]:
        pools = config.load(stack).pools
        rows.append({"stack": stack, "pools": len(pools), "most_nodes": sum(it.max_nodes for it in pools)})
        if not given.json:
            print(f"{stack}: fine; {len(pools)} pools, at most {rows[-1]['most_nodes']} nodes")
    return _put("infra-check", {"stacks": rows}) if given.json else 0


def _cost(given: argparse.Namespace) -> int:
    prices = cost.load(given.prices)
    made = cost.estimate(config.load(given.stack), prices, given.hours)
    if given.json:
        pools = [dataclasses.asdict(it) for it in made.lines]
        whole = {"stack": given.stack, "hours": made.hours, "least_usd": made.least, "most_usd": made.most}
        return _put("infra-cost", {**whole, "label": "predicted", "pools": pools, "prices_as_of": prices.as_of})
    print(f"{'pool':<10} {'size':<30} {'nodes':>7} {'on demand':>10} {'spot':>8} {'counted, USD/h each':>20}")
    for line in made.lines:
        known = cost.price(prices, line.sku)
        size = f"{line.sku}{' spot' if line.spot else ''}"
        each = f"{known.on_demand:.3f}", "?" if known.spot is None else f"{known.spot:.3f}"
        counted = f"{line.usd_per_hour:.3f}{' assumed' if line.assumed else ''}"
        print(f"{line.name:<10} {size:<30} {f'{line.least}-{line.most}':>7} {each[0]:>10} {each[1]:>8} {counted:>20}")
    print(f"{given.stack}: ${made.least:,.2f} to ${made.most:,.2f} for {given.hours:g} h of machines (predicted)")
    print(f"prices: {prices.region}, as of {prices.as_of}; source: {prices.source}")
    print("of a run, before: pg bench plan --price-per-node-hour P; after: pg reports RUN the same")
    return 0


def _prices(given: argparse.Namespace) -> int:
    cost.save(cost.fetch(cost.load(), given.region, _now().date().isoformat()), given.file)
    print(f"{given.file}: prices of {given.region}")
    return 0


def _outputs(given: argparse.Namespace) -> int:
    where = outputs.load(given.stack)
    names = [it.name for it in dataclasses.fields(where) if it.name not in outputs.SECRETS]
    found = {name: outputs.plain(getattr(where, name)) for name in names}
    if given.json:
        return _put("infra-outputs", {"stack": given.stack, "outputs": found})
    for name, value in found.items():
        print(f"{name}: {json.dumps(value)}")
    return 0


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
    from proving_ground.infra.blobs import container  # noqa: PLC0415 - the other commands work without Azure's packages

    return container(where)


def _chart(given: argparse.Namespace) -> int:
    del given
    chart.write()
    print(f"{chart.FOLDER}: written")
    return 0


def _job(given: argparse.Namespace) -> int:
    environment, where = config.load(given.stack), outputs.load(given.stack)
    if where.azure is None or environment.azure is None or environment.azure.ml_compute is None:
        raise ConfigError(f"job: stack {given.stack} has no Azure ML (azure.ml_compute)")
    image = given.image or environment.kubernetes.images.get("trainer")
    if not image:
        raise ConfigError(f"job: stack {given.stack} names no image of a trainer; name one with --image")
    made = mljob.body(
        where.azure, environment.azure.ml_compute, image, given.set,
        nodes=given.nodes, ranks=given.ranks, hours=given.hours,
    )  # fmt: skip
    file = given.file or Path(f"{given.stack}-job.yaml")
    file.write_text(yaml.safe_dump(made, sort_keys=False, width=10_000))
    print(*mljob.how(where.azure, file), sep="\n")
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


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
