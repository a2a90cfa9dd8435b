"""The command line `pg serving …`: what can be typed, and what each mistake says."""

from __future__ import annotations

import argparse
from pathlib import Path

from proving_ground.bench import shell
from proving_ground.bench.rundir import RunDirError
from proving_ground.serving import commands
from proving_ground.serving.mistakes import FailedError, ServingError

EXAMPLES = """examples:
  pg serving register runs/NAME/latest --name digits     the training's model, into MLflow
  pg serving check digits                                both servers and the model itself: the same answers?
  pg serving serve digits --replicas 2                   an end point; Ctrl-C ends it
  pg serving load digits --replicas 2 --kill             what it bears, and what a dead replica costs

MODEL is a folder, NAME (its newest version), NAME/VERSION or NAME@ALIAS.
exit status: 0 fine, 1 a check failed, 2 a mistake in what was asked, 130 interrupted"""


def parser() -> shell.Parser:
    """All commands and options."""
    return shell.parser("serving", "From a finished training to an end point.", EXAMPLES, COMMANDS)


def of_registry(command: argparse.ArgumentParser) -> None:
    """Which MLflow."""
    words = "MLflow's address (default: MLFLOW_TRACKING_URI, else mlflow.db beside the runs)"
    command.add_argument("--tracking-uri", metavar="URI", help=words)


def of_register(command: argparse.ArgumentParser) -> None:
    """What, and under which name."""
    command.add_argument("what", metavar="RUN_OR_CHECKPOINT", help="a checkpoint, a folder of them, or a sealed run")
    command.add_argument("--run", default="", help="the sealed run that a checkpoint was made in")
    words = "take a run that failed or was cut off; a tag says so"
    command.add_argument("--incomplete", action="store_true", help=words)
    command.add_argument("--name", required=True, help="the registered model's name")
    of_registry(command)


def of_check(command: argparse.ArgumentParser) -> None:
    """Against what."""
    of_model(command)
    of_registry(command)
    words = "an end point that is up; repeatable (default: both engines are started)"
    command.add_argument("--endpoint", action="append", default=[], metavar="URL", help=words)
    of_header(command)
    words = "a schema.json, or a model's folder: refuse a model that its clients would notice"
    command.add_argument("--schema", type=Path, metavar="FILE", help=words)


def of_header(command: argparse.ArgumentParser) -> None:
    """How an end point knows who asks."""
    words = "of every request to --endpoint, its value out of a variable, which your shell must not expand; repeatable"
    command.add_argument("--header", type=header, action="append", default=[], metavar="'NAME=$VARIABLE'", help=words)


def header(text: str) -> tuple[str, str]:
    """A header's name, and the variable that has its value: that is in no command line."""
    name, _, variable = text.partition("=$")
    if not name or not variable.isidentifier():
        raise argparse.ArgumentTypeError("must be 'NAME=$VARIABLE', in single quotes")
    return name, variable


def of_model(command: argparse.ArgumentParser) -> None:
    """Which model."""
    command.add_argument("model", metavar="MODEL", help="a model's folder, NAME, NAME/VERSION or NAME@ALIAS")


def of_engine(command: argparse.ArgumentParser) -> None:
    """What serves it."""
    words = "azureml-inference-server-http, or mlflow models serve (default: azureml)"
    command.add_argument("--engine", choices=commands.ENGINE_NAMES, help=words)
    command.add_argument(
        "--replicas", type=counted, metavar="N", help="servers; several are behind HAProxy (default: 1)"
    )


def of_load(command: argparse.ArgumentParser) -> None:
    """On what, by how many, for how long."""
    command.add_argument(
        "model", metavar="MODEL", help="a model's folder, NAME, NAME/VERSION or NAME@ALIAS; its example is posted"
    )
    of_registry(command)
    of_engine(command)
    words = "addresses of an end point that is up, taken in turn (default: one is started)"
    command.add_argument("--endpoint", type=listed, default=[], metavar="URL[,URL]", help=words)
    of_header(command)
    command.add_argument(
        "--users", type=numbers, default=[1, 2, 4, 8], metavar="N[,N]", help="levels (default: 1,2,4,8)"
    )
    words = "of a level; the first is for the users to come up (default: 10)"
    command.add_argument("--seconds", type=counted, default=10, metavar="S", help=words)
    command.add_argument("--repeats", type=counted, default=3, metavar="N", help="of all levels, in turn (default: 3)")
    words = "hold its figures to this, such as 'p50{users=1} <= 1000'; repeatable (`reports check` has the form)"
    command.add_argument("--that", action="append", default=[], metavar="CONSTRAINT", help=words)
    words = "at the end a level in which the first of several replicas is killed"
    command.add_argument("--kill", action="store_true", help=words)
    shell.of_json(command)


def listed(text: str) -> list[str]:
    """Words between commas."""
    found = text.split(",")
    if not all(found):
        raise argparse.ArgumentTypeError(f"has an empty address: {text!r}")
    return found


def numbers(text: str) -> list[int]:
    """Whole numbers between commas, each once."""
    found = [counted(it) for it in text.split(",")]
    if len(set(found)) < len(found):
        raise argparse.ArgumentTypeError(f"has a number twice: {text}")
    return found


def counted(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def of_serve(command: argparse.ArgumentParser) -> None:
    """Where."""
    of_model(command)
    of_registry(command)
    of_engine(command)
    command.add_argument("--port", type=int, default=5001, help="port of the end point; 0: a free one (default: 5001)")


COMMANDS: shell.Commands = {
    "register": (commands.register, "Register a training's model in MLflow, with its lineage.", of_register),
    "check": (commands.check, "Ask both servers and the model itself: the same answers?", of_check),
    "serve": (commands.serve, "Serve a model on this machine until Ctrl-C.", of_serve),
    "load": (commands.load, "Put load on an end point, kill a replica meanwhile, and report.", of_load),
}


def main(words: list[str] | None = None) -> int:
    """Run one command; the exit status."""
    return shell.carry_out(parser(), words, (ServingError, RunDirError), (FailedError, OSError))


def program(words: list[str] | None) -> int:
    """What the process does."""
    return main(words)
