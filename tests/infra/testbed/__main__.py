"""The command line of the testbed: `nox -s testbed -- up --nodes 3`, or `python -m tests.infra.testbed --help`.

Exit status 0 fine, 1 nothing is up, 2 the caller's mistake or a machine that cannot, 130 interrupted.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.engines import kubernetes
from tests.infra.gotools import UnavailableError
from tests.infra.testbed import images, node
from tests.infra.testbed.service import FOLDER, Place, RefusedError, hold, start

MOST_NODES, TRAINERS = 20, 3
EXAMPLES = """examples:
  nox -s testbed -- up --nodes 4        a Kubernetes of four nodes on this machine, in the background
  nox -s testbed -- status              each node, and whether the API server answers
  nox -s testbed -- kill n2             cut its power; restore n2 gives it back
  nox -s testbed -- partition n1        no packet to or from it; heal n1 lets them pass again
  nox -s testbed -- api stop            the API server is away; api start brings it back
  nox -s testbed -- down                nothing is left"""
HOW = """{nodes} nodes are ready. For kubectl, and for a suite on them:
  export KUBECONFIG={folder}/cluster/kubeconfig PATH={folder}/cluster/bin:$PATH
  nox -s {suite} --cluster '{option}'
`nox -s testbed -- down` ends it."""
BENCH, CHAOS = "bench -- --suite smoke", "chaos -- --suite kubernetes-machines"


def up(place: Place, given: argparse.Namespace) -> int:
    """Bring one up; it stays when the command has returned."""
    for archive in given.image:
        if not archive.is_file():
            raise RefusedError(f"--image {archive}: no such file; it takes an archive as `docker save` writes it")
        try:
            images.named(archive)
        except ValueError as reason:
            raise RefusedError(f"--image {reason}") from None
    node.missing()
    for program, package in kubernetes.PROGRAMS.items():
        if shutil.which(program) is None:
            raise UnavailableError(f"{program} (Debian: {package}) is not on PATH")
    start(place, given.nodes, [it.resolve() for it in given.image], stack=given.stack)
    suite = CHAOS if given.nodes > TRAINERS else BENCH  # the coordinator has a node of its own
    print(HOW.format(nodes=given.nodes, folder=place.folder, suite=suite, option=option(place.folder)))
    return 0


def option(folder: Path) -> str:
    """What `--cluster` says to use it, its machines and API server included."""
    return kubernetes.option(power=f"{folder}/testbed", api=f"{folder}/testbed api")


def down(place: Place, _: argparse.Namespace) -> int:
    """End it, and remove what a killed one left."""
    print("the testbed is down" if place.end() else "no testbed was up")
    return 0


def status(place: Place, _: argparse.Namespace) -> int:
    """What there is of it."""
    if place.holder is None:
        print(f"no testbed is up in {place.folder}")
        return 1
    found = place.ask("status")
    for name, it in found["nodes"].items():
        power = "power" if it["power"] else "no power"
        ready = "ready" if it["ready"] else "not ready"
        says = f"Kubernetes says {ready}" if found["api"] else "Kubernetes is not asked"
        print(f"{name}  {power}, {'cut off' if it['cut_off'] else 'reached'}; {says}")
    print(f"API server: {'answers' if found['api'] else 'away'}; KUBECONFIG={place.cluster}/kubeconfig")
    return 0


def asks(verb: str, **about: bool) -> Callable[[Place, argparse.Namespace], int]:
    """A command that has the testbed do something to a node."""

    def ask(place: Place, given: argparse.Namespace) -> int:
        print(place.ask(verb, name=given.node, **about))
        return 0

    return ask


def api(place: Place, given: argparse.Namespace) -> int:
    """Stop or start the API server."""
    print(place.ask("api", on=given.do == "start"))
    return 0


def held(place: Place, given: argparse.Namespace) -> int:
    """Be the process in the background."""
    hold(place, given.nodes, given.image, stack=given.stack)
    return 0


COMMANDS: Mapping[str, tuple[Callable[[Place, argparse.Namespace], int], str]] = {
    "up": (up, "bring a cluster up, in the background"),
    "down": (down, "end it; nothing is left"),
    "status": (status, "its nodes and its API server"),
    "kill": (asks("power", on=False), "cut a node's power: cable, kubelet, containerd and pods at once"),
    "restore": (asks("power", on=True), "give a node its power back"),
    "partition": (asks("part", on=True), "drop all packets between a node and all others"),
    "heal": (asks("part", on=False), "let them pass again"),
    "api": (api, "stop or start the API server"),
    "hold": (held, ""),
}
"""Word → what it does, and its help; without help it is not for people."""


def parser() -> argparse.ArgumentParser:
    """All commands and options."""
    made = argparse.ArgumentParser(
        "testbed", description="A real Kubernetes of several nodes on this machine.", epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    made.add_argument("--folder", type=Path, default=FOLDER, metavar="DIR", help=f"its files (default: {FOLDER})")
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (_, text) in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text) if text else commands.add_parser(name)
        if name in ("up", "hold"):
            command.add_argument("--nodes", type=number, default=4, metavar="N", help="how many (default: 4)")
            command.add_argument(
                "--image", type=Path, action="append", default=[], metavar="FILE",
                help="an image for pods, as `docker save` writes it; may be given again",
            )  # fmt: skip
            command.add_argument(
                "--stack", action="store_true", help="with the images of stack `local`; its trainers' has only Python"
            )
        elif name in ("kill", "restore", "partition", "heal"):
            command.add_argument("node", metavar="NODE", help="n1, n2 …")
        elif name == "api":
            command.add_argument("do", choices=("stop", "start"))
    return made


def number(word: str) -> int:
    """How many nodes.

    Raises:
        ArgumentTypeError: as many as this cannot be had.
    """
    if not word.isdigit() or not 1 <= int(word) <= MOST_NODES:
        raise argparse.ArgumentTypeError(f"{word!r} is no number of nodes: allowed are 1 to {MOST_NODES}")
    return int(word)


def main(argv: Sequence[str] | None = None) -> int:
    """Do one command; what goes wrong is one line."""
    given = parser().parse_args(argv)
    try:
        return COMMANDS[given.command][0](Place(given.folder.absolute()), given)
    except KeyboardInterrupt:
        print("testbed: interrupted; nothing is left", file=sys.stderr)
        return 130
    except (UnavailableError, RefusedError, RuntimeError, OSError) as why:
        print(f"testbed: {' '.join(str(why).split())}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
