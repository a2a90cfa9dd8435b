"""The commands `launch` and `coordinator`: training that starts again by itself. Called by `training.__main__`.

No torch here: `--help` and a mistake need none.
"""

from __future__ import annotations

import argparse
import re
import socket
import sys

from proving_ground.training.commandline import Parser

STOPPED = 75
"""Status of a worker that was asked to stop and saved its state: with the others it may go on."""

PORT = 29500
"""Where a coordinator listens, unless told: the one port for it that the cluster's network policy opens."""

LAUNCHED = "TORCHELASTIC_RUN_ID"
"""The environment variable that torch elastic gives every worker."""

LAUNCH = """Start this node's workers of a job; start them again, with all other nodes', when something fails.

  pg training coordinator                                            on a machine of its own
  pg training launch --nodes 2:3 --coordinator HOST run --config …   on every node

Everything after the options is what each worker does. A checkpoint_dir that all nodes see is what it goes on from.
SIGTERM: the workers finish their step, save, and this node leaves the job.
Exit status: 0 done, 75 left, 2 a mistake (a worker's too: it is not started again), 3 given up: no step after 3
retries, or too few nodes for a minute.
"""


def port(text: str) -> int:
    """A port's number as it is typed.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number from 1 to 65535")
    return int(text)


def endpoint(text: str) -> str:
    """HOST:PORT of `HOST[:PORT]` as it is typed.

    Raises:
        argparse.ArgumentTypeError: there is no host, or its port is none.
    """
    host, colon, number = text.rpartition(":") if ":" in text else (text, ":", str(PORT))
    if not host:
        raise argparse.ArgumentTypeError(f"{text!r}: must be HOST[:PORT]")
    return f"{host}{colon}{port(number)}"


def add_commands(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add both to the command line."""
    raw = argparse.RawDescriptionHelpFormatter
    launch = commands.add_parser(
        "launch", help="run one node of a job that survives failures", description=LAUNCH, formatter_class=raw
    )
    launch.add_argument("--nodes", default="1", metavar="MIN:MAX", help="how many nodes make the job, such as 2:3 or 4")
    launch.add_argument("--workers", type=int, default=1, metavar="N", help="workers on this node (default 1)")
    launch.add_argument(
        "--coordinator", type=endpoint, required=True, metavar="HOST[:PORT]",
        help=f"where the nodes meet (port {PORT})",
    )  # fmt: skip
    launch.add_argument("--job", default="job", metavar="NAME", help="tells jobs at one coordinator apart")
    launch.add_argument(
        "--address", default=socket.gethostname(), help="this node's, for the others (default: its name)"
    )
    launch.add_argument(
        "--entry", default="proving_ground.training.__main__:main", metavar="MODULE:FUNCTION",
        help="what a worker calls with the words after the options (default: this trainer)",
    )  # fmt: skip
    launch.add_argument("words", nargs=argparse.REMAINDER, metavar="WORD", help="such as: run --config digits.toml")
    serve = commands.add_parser("coordinator", help="the store that the nodes of a job meet at; until it is ended")
    serve.add_argument("--port", type=port, default=PORT, metavar="N", help=f"default {PORT}")


def launch(options: argparse.Namespace) -> int:
    """Run one node; the exit status."""
    counts = re.fullmatch(r"(\d+)(?::(\d+))?", options.nodes)
    least, most = (int(counts[1]), int(counts[2] or counts[1])) if counts else (0, 0)
    if not 1 <= least <= most:
        return complain(f"--nodes {options.nodes}: must be a count, or MIN:MAX with 1 <= MIN <= MAX")
    if options.workers < 1:
        return complain(f"--workers {options.workers}: must be at least 1")
    if not re.fullmatch(r"[\w.]+:\w+", options.entry):
        return complain(f"--entry {options.entry}: must be MODULE:FUNCTION")
    if not options.words:
        return complain("nothing to start: add what a worker does, such as: run --config training/configs/digits.toml")
    from proving_ground.training.recovery.launch import Launch  # noqa: PLC0415 - torch
    from proving_ground.training.recovery.launch import launch as start  # noqa: PLC0415 - same

    about = options.workers, options.coordinator, options.job, options.address, options.entry
    return start(Launch((least, most), *about, tuple(options.words)))


def coordinator(options: argparse.Namespace) -> int:
    """Serve until the process is ended; the exit status."""
    from proving_ground.training.recovery.rendezvous import serve  # noqa: PLC0415 - torch

    try:
        serve(options.port)
        status = 0
    except (RuntimeError, ValueError) as error:
        sys.stderr.write(f"coordinator: port {options.port}: {str(error).splitlines()[0]}\n")
        status = 1
    except KeyboardInterrupt:
        status = 130
    return status


def complain(line: str) -> int:
    """A mistake of the caller's."""
    sys.stderr.write(f"launch: {line}\n")
    return 2
