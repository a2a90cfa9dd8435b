"""The commands `live` and `lighthouse`: training that goes on with the nodes that are left.

Called by `training.__main__`. No torch here: `--help` and a mistake need none.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import socket
import sys
from typing import TYPE_CHECKING

from proving_ground.training import entry
from proving_ground.training.commandline import Parser
from proving_ground.training.config import ConfigError
from proving_ground.training.events import GAVE_UP
from proving_ground.training.recovery.elastic import PORT, endpoint, port
from proving_ground.training.recovery.lighthouse import EXPIRY_S, serve

if TYPE_CHECKING:
    from collections.abc import Callable

    from proving_ground.training.recovery.members import Place

PLACES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What a launcher may have said; in a live job ranks are agreed at every change."""

LIVE = """Train as one node of a job that goes on when others fail, and that nodes may join again (torchft).

  pg training lighthouse                                                     on a machine of its own
  pg training live --nodes 2:3 --number 0 --lighthouse HOST run --config …   on every node, each its number

Whoever runs it starts it again when it has ended with a status above 0, other than 2 and 3. It then takes the state of
a node that is there; when no node has one it goes on from the newest checkpoint in checkpoint_dir.
A node with several ranks runs this once for each: --nodes and --number then count ranks, node by node.
SIGTERM: it finishes its step and leaves.
Exit status: 0 done, 75 left, 1 failed, 2 a mistake, 3 given up: no step for a minute.
"""


def add_commands(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add both to the command line."""
    raw = argparse.RawDescriptionHelpFormatter
    live = commands.add_parser(
        "live", help="train as a node of a job whose survivors carry on", description=LIVE, formatter_class=raw
    )
    live.add_argument("--nodes", required=True, metavar="MIN:MAX", help="how many nodes make the job, such as 2:3")
    live.add_argument("--number", type=int, required=True, metavar="N", help="this node's, from 0; ranks follow it")
    live.add_argument(
        "--lighthouse", type=endpoint, required=True, metavar="HOST[:PORT]",
        help=f"where the nodes agree (port {PORT})",
    )  # fmt: skip
    live.add_argument("--address", default=socket.gethostname(), help="this node's, for the others (default: its name)")
    live.add_argument(
        "--entry",
        metavar="MODULE:FUNCTION",
        help="called with this command's words but its own (default: this trainer)",
    )
    live.add_argument("words", nargs=argparse.REMAINDER, metavar="WORD", help="such as: run --config digits.toml")
    serve = commands.add_parser("lighthouse", help="the coordinator of a live job; until it is ended")
    serve.add_argument("--port", type=port, default=PORT, metavar="N", help=f"default {PORT}")
    serve.add_argument("--least", type=int, default=1, metavar="N", help="nodes without which no step is made")
    serve.add_argument(
        "--expiry", type=float, default=EXPIRY_S, metavar="S",
        help=f"a node is dead after S seconds without a heartbeat; more on overloaded hosts (default {EXPIRY_S})",
    )  # fmt: skip


def place_of(options: argparse.Namespace) -> Place:
    """What the command line says about this node.

    Raises:
        ConfigError: the command line makes no sense.
    """
    from proving_ground.training.recovery.members import Place  # noqa: PLC0415 - torch

    counts = re.fullmatch(r"(\d+)(?::(\d+))?", options.nodes)
    least, most = (int(counts[1]), int(counts[2] or counts[1])) if counts else (0, 0)
    if not 1 <= least <= most:
        raise ConfigError(f"--nodes {options.nodes}: must be a count, or MIN:MAX with 1 <= MIN <= MAX")
    if not 0 <= options.number < most:
        raise ConfigError(f"--number {options.number}: must be from 0 to {most - 1}, each node its own")
    return Place(options.lighthouse, options.address, options.number, (least, most))


def live(
    options: argparse.Namespace,
    parse: Callable[[list[str]], argparse.Namespace],
    run: Callable[[argparse.Namespace, Callable[[], Place]], int],
) -> int:
    """Train as one node; the exit status."""
    if options.words[:1] != ["run"]:
        sys.stderr.write("live: nothing to do: add what to train, such as: run --config training/configs/digits.toml\n")
        return 2
    for name in PLACES:
        os.environ.pop(name, None)
    if options.entry:
        return entered(options)
    return run(parse(options.words), lambda: place_of(options))


def entered(options: argparse.Namespace) -> int:
    """Have a function of the user's do what this command asks; its exit status."""
    me = ("--number", str(options.number), "--address", options.address)
    words = ["live", "--nodes", options.nodes, *me, "--lighthouse", options.lighthouse, *options.words]
    try:
        return entry.call(options.entry, words)
    except ConfigError as error:
        sys.stderr.write(f"live: {error}\n")
        return 2


def gave_up(problem: Exception) -> tuple[int, str]:
    """(exit status, what to tell) of a job that cannot go on by itself."""
    again = shlex.join(["python", "-m", "proving_ground.training", *sys.argv[1:]])
    return GAVE_UP, f"{problem}; the last checkpoint is kept: go on with {again}"


def lighthouse(options: argparse.Namespace) -> int:
    """Serve until the process is ended; the exit status."""
    try:
        serve(options.port, options.least, options.expiry)
    except ImportError:
        sys.stderr.write("lighthouse: torchft is not installed: pip install '.[live]' (Linux, x86-64)\n")
        return 2
    except ConfigError as error:
        sys.stderr.write(f"lighthouse: {error}\n")
        return 2
    except (RuntimeError, ValueError, OSError) as error:
        sys.stderr.write(f"lighthouse: port {options.port}: {str(error).splitlines()[0]}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0
