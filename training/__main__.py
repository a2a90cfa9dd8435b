# PYTHON_ARGCOMPLETE_OK
"""`pg training`: train, measure parts of training, record a profile, make the shipped data again."""

from __future__ import annotations

import os
import signal
import sys

INTERRUPTED = 130


def interrupted(*_: object) -> None:
    """Say so in one line and end at once: nothing is there yet to be cleaned up."""
    os.write(2, b"training: interrupted\n")
    os._exit(INTERRUPTED)


AS_PROGRAM = __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler
if AS_PROGRAM:
    signal.signal(signal.SIGINT, interrupted)  # while modules are imported Python may print an interrupt and go on

import argparse
import atexit
import contextlib
import importlib
import threading
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from proving_ground.training import config, entry, wrap
from proving_ground.training.commandline import Parser
from proving_ground.training.events import EVENTS_VARIABLE, EventWriter, NoEvents, open_events, take_own_files
from proving_ground.training.measuring import programs
from proving_ground.training.recovery import elastic, live_commands

if TYPE_CHECKING:
    from proving_ground.training.recovery.members import Place

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # before torch is imported: its socket warnings are not for users

Listener = EventWriter | NoEvents

CALLERS_MISTAKES = ("ConfigError", "TooLargeError", "DataError", "ModelError", "ProfileError")
"""Exit status 2; by name, so that `--help` and a wrong config need no torch."""

RUN_TEXT = f"""Train a model: one process by hand, or one of many under torchrun or the harness.

  pg training run --config training/configs/digits.toml
  torchrun --nproc-per-node=4 -m proving_ground.training run --config training/configs/digits.toml

Events are appended to the file that {EVENTS_VARIABLE} names. Exit status: 0 done or stopped by SIGTERM,
1 training failed, 2 a mistake in config, data or profile.

Keys, their defaults and meanings (file, then environment {config.PREFIX}<KEY>, then --set):
{config.describe()}
"""


def parser() -> Parser:
    """The command line."""
    top = Parser(prog="pg training", description=__doc__)
    top.add_argument("--version", action="version", version=f"proving-ground {version()}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    raw = argparse.RawDescriptionHelpFormatter
    run = commands.add_parser("run", help="train a model", description=RUN_TEXT, formatter_class=raw)
    add_keys(run, "TOML or YAML; without it every key has its default")
    add_planning(commands)
    again = commands.add_parser(
        "replay", help="make a recorded job's steps again, undisturbed, in worlds of the same sizes"
    )
    again.add_argument("--config", type=Path, metavar="FILE", help="the job's")
    again.add_argument(
        "--entry", metavar="MODULE:FUNCTION", help="called with these words but its own (default: this trainer)"
    )
    again.add_argument("--lineage", type=Path, required=True, metavar="FILE", help="what the harness wrote of the job")
    first = commands.add_parser("reference", help="make a training's first steps by a plain loop, to check them by")
    first.add_argument("--config", type=Path, metavar="FILE", help="the training's")
    first.add_argument("--ranks", type=int, required=True, metavar="N", help="whose parts are added up, by one process")
    first.add_argument("--seeded", action="store_true", help="random numbers follow from step and rank: of a live job")
    elastic.add_commands(commands)
    live_commands.add_commands(commands)
    wrap.add_command(commands)
    for name, settings in programs.PROGRAMS.items():
        text = f"{settings.__doc__}\n\nKeys of --config, a TOML file:\n{programs.describe(name)}"
        words = str(settings.__doc__).partition("\n")[0]
        program = commands.add_parser(name, help=f"measure: {words}", description=text, formatter_class=raw)
        program.add_argument("--config", type=Path, metavar="FILE", help="without it every key has its default")
    profile = commands.add_parser(
        "profile", help="record how long a real model computes on this machine, for paced runs"
    )
    profile.add_argument(
        "--model", default="resnet50", help="resnet18, resnet50 (default), resnet152 or vit_b_16, from torchvision"
    )
    profile.add_argument(
        "--batch", type=int, default=32, metavar="N", help="samples in a step of one device (default 32)"
    )
    profile.add_argument(
        "--device", default="auto", choices=("auto", "cpu", "cuda"), help="default auto: cuda where there is one"
    )
    profile.add_argument(
        "--precision", default="fp32", choices=("fp32", "bf16"), help="of forward and loss; weights stay FP32"
    )
    profile.add_argument("--threads", type=int, default=1, metavar="N", help="CPU threads (default 1)")
    profile.add_argument("--out", type=Path, metavar="FILE", help="default: MODEL-DEVICE.json in this folder")
    data = commands.add_parser("data", help="make the shipped data sets again (needs the extras `data`)")
    data.add_argument("--out", type=Path, metavar="FOLDER", help="default: training/data_sets")
    return top


def add_keys(command: argparse.ArgumentParser, file: str) -> None:
    """The configuration of a training; `file`: the help text of `--config`."""
    command.add_argument("--config", type=Path, metavar="FILE", help=file)
    command.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="sets", help="override one key; repeatable"
    )


def add_planning(commands: argparse._SubParsersAction[Parser]) -> None:
    """What tells of a training before it starts."""
    plan = commands.add_parser("plan", help="how much memory each rank of a training needs; starts nothing")
    add_keys(plan, "the training's")
    plan.add_argument("--ranks", type=int, default=1, metavar="N", help="how many, each on its device (default 1)")
    plan.add_argument("--memory", default="", metavar="SIZE", help="of one device, such as 16GiB: what is larger fails")
    plan.add_argument("--json", action="store_true", help="print one JSON document and nothing else (docs/machines.md)")
    batch = commands.add_parser(
        "batch", help="the largest batch that one device trains, and from where on a larger one wins nothing"
    )
    add_keys(batch, "the training's; its global_batch plays no part")
    batch.add_argument("--most", type=int, default=0, metavar="N", help="samples that are tried (default: no limit)")
    batch.add_argument(
        "--json", action="store_true", help="print one JSON document and nothing else (docs/machines.md)"
    )


def version() -> str:
    """Of the installed project."""
    try:
        return metadata.version("proving-ground")
    except metadata.PackageNotFoundError:  # a clone can be used as it is
        return "0+not-installed"


@contextlib.contextmanager
def nothing_to_clean_up() -> Iterator[None]:
    """Where a Ctrl-C would raise, it ends the process at once: amid an import Python may print it and go on."""
    raises = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not raises or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def run(arguments: argparse.Namespace, place: Callable[[], Place] | None = None) -> int:
    """Train; with a place as a node of a live job."""

    def work(events: Listener) -> int:
        chosen = config.load(arguments.config, os.environ, arguments.sets)
        with nothing_to_clean_up():
            from proving_ground.training.loop import train  # noqa: PLC0415 - torch, only once the config is right

        result = train(chosen, events, say, place() if place else None)
        stopped = result.reason == "stopped" and (place is not None or elastic.LAUNCHED in os.environ)
        return elastic.STOPPED if stopped else 0

    return as_rank(work)


def plan(arguments: argparse.Namespace) -> int:
    """Tell what a training needs."""

    def work(_events: Listener) -> None:
        chosen = config.load(arguments.config, os.environ, arguments.sets)
        with nothing_to_clean_up():
            from proving_ground.training.device import plan as planning  # noqa: PLC0415 - torch, only once the config is right

            planning.plan(chosen, arguments.ranks, arguments.memory, say, machine=arguments.json)

    return as_rank(work)


def batch(arguments: argparse.Namespace) -> int:
    """Try batches on this device."""

    def work(_events: Listener) -> None:
        chosen = config.load(arguments.config, os.environ, arguments.sets)
        with nothing_to_clean_up():
            from proving_ground.training.device import batch as trying  # noqa: PLC0415 - torch, only once the config is right

            trying.find(chosen, say, most=arguments.most, machine=arguments.json)

    return as_rank(work)


def replay(arguments: argparse.Namespace) -> int:
    """Make a job's lineage again."""
    if arguments.entry:
        config_words = ["--config", str(arguments.config)] if arguments.config else []
        return entry.call(arguments.entry, ["replay", "--lineage", str(arguments.lineage), *config_words])

    def work(events: Listener) -> None:
        chosen = config.load(arguments.config, os.environ)
        with nothing_to_clean_up():
            from proving_ground.training.judging import replay as again  # noqa: PLC0415 - torch, only once the config is right

        again.replay(chosen, again.read(arguments.lineage), events)

    return as_rank(work)


def reference(arguments: argparse.Namespace) -> int:
    """Make a training's first steps by a plain loop."""

    def work(events: Listener) -> None:
        chosen = config.load(arguments.config, os.environ)
        with nothing_to_clean_up():
            from proving_ground.training.judging import reference as plain  # noqa: PLC0415 - torch, only once the config is right

        plain.reference(chosen, arguments.ranks, events, seeded=arguments.seeded)

    return as_rank(work)


def measure(arguments: argparse.Namespace) -> int:
    """Run one of the measuring programs."""

    def work(events: Listener) -> None:
        settings = programs.load(arguments.command, arguments.config)
        with nothing_to_clean_up():
            program = importlib.import_module(f"proving_ground.training.measuring.{arguments.command}")
        program.run(settings, events, say)

    return as_rank(work)


def say(line: str) -> None:
    """Print at once."""
    print(line, flush=True)


def as_rank(work: Callable[[Listener], int | None]) -> int:
    """Do a process' work; every failure is one line, and an `error` event for whoever listens."""
    events = open_events()
    try:
        return work(events) or 0
    except Exception as error:
        message = in_words(error)
        kind = failure(error)
        status = 2 if type(error).__name__ in CALLERS_MISTAKES else 1
        if type(error).__name__ == "GaveUpError":
            status, message = live_commands.gave_up(error)
            events.emit("gave_up", message=message)
        events.emit("error", message=message, kind=kind, fatal=True, status=status)
        who = f"training rank {os.environ['RANK']}" if "RANK" in os.environ else "training"
        sys.stderr.write(f"{who}: {message}\n" if status != 1 else f"{who}: {kind}: {message}\n")
        return status
    finally:
        events.close()


def in_words(error: Exception) -> str:
    """One line; torch thinks that the user has asked for what this trainer has asked for."""
    message = " ".join(str(error).split()) or type(error).__name__
    operation, found, _ = message.partition(" does not have a deterministic implementation")
    why = ", which exact sums need, and fingerprints without deterministic = false (docs/gpu.md)"
    return f"{operation}{found}{why}" if found else message


def failure(error: Exception) -> str:
    """The kind of a failure: that memory did not suffice is said in many ways."""
    if "torch" in sys.modules:
        from proving_ground.training.device.fit import is_out_of_memory  # noqa: PLC0415 - torch, which is there

        if is_out_of_memory(error):
            return "OutOfMemoryError"
    return type(error).__name__


def profile(arguments: argparse.Namespace) -> int:
    """Record a profile and say what is in it."""
    with nothing_to_clean_up():
        from proving_ground.training.exchange.communication import pick_device  # noqa: PLC0415 - torch
        from proving_ground.training.measuring import profiling  # noqa: PLC0415 - only here

    try:
        device = pick_device(arguments.device)
        recorded = profiling.record(
            arguments.model, arguments.batch, device, threads=arguments.threads, precision=arguments.precision
        )
    except (profiling.ProfileError, config.ConfigError) as error:
        sys.stderr.write(f"training profile: {error}\n")
        return 2
    out = arguments.out or Path(f"{arguments.model}-{device.type}.json")
    profiling.write(recorded, out)
    print(f"{out}: {recorded.model}, batch {recorded.batch}, on {recorded.origin['device']}:")
    for name in ("forward_s", "backward_s", "optimizer_s"):
        print(f"  {name:<12} {getattr(recorded, name):.3f}")
    return 0


def data(arguments: argparse.Namespace) -> int:
    """Make the shipped data sets again."""
    from proving_ground.training.data.make_data import MAKERS  # noqa: PLC0415 - same
    from proving_ground.training.data.mapped import SHIPPED  # noqa: PLC0415 - numpy, only here

    for name, make in MAKERS.items():
        try:
            make((arguments.out or SHIPPED) / name)
        except ModuleNotFoundError as error:
            sys.stderr.write(
                f"training data: {error.name} is not installed; it is in the extras: pip install '.[data]'\n"
            )
            return 2
        except FileNotFoundError as error:
            sys.stderr.write(f"training data: {name} was not made: {error}\n")
            continue
        print((arguments.out or SHIPPED) / name)
    return 0


def main(argv: list[str] | None = None) -> int:
    """Run one command; its exit status."""
    take_own_files()
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete  # noqa: PLC0415 - where training alone is installed it may be missing

        argcomplete.autocomplete(parser())
    arguments = parser().parse_args(argv)
    own = {
        "run": run, "plan": plan, "batch": batch, "replay": replay, "reference": reference, "profile": profile,
        "data": data,
        "launch": elastic.launch, "coordinator": elastic.coordinator,
        "live": lambda options: live_commands.live(options, parser().parse_args, run),
        "lighthouse": live_commands.lighthouse, "wrap": wrap.main,
    }  # fmt: skip
    return own.get(arguments.command, measure)(arguments)


def leave(status: int) -> NoReturn:
    """End the process without the interpreter's own shutdown.

    A thread of Gloo's that lets go of its last tensor meanwhile would end it by SIGABRT. After a failure at once, since
    the library's threads may wait for a peer that is gone.
    """
    if status != 1:
        atexit._run_exitfuncs()  # noqa: SLF001 - as the interpreter would
    with contextlib.suppress(BrokenPipeError):  # who reads has seen enough
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    if AS_PROGRAM:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        leave(main())
    except KeyboardInterrupt:
        interrupted()
