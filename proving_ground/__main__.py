# PYTHON_ARGCOMPLETE_OK
"""`pg PROGRAM …` and `python -m proving_ground PROGRAM …`: one way in to all command lines, from any folder.

In a clone `python -m bench plan` is `pg bench plan`. Also the place that completes `pg` in a shell.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from proving_ground.bench.start import start

if TYPE_CHECKING:
    from proving_ground.bench.shell import Parser

PROGRAMS: Mapping[str, str] = {
    "bench": "measure how training scales",
    "chaos": "break training on purpose, and judge how it recovers",
    "reports": "make and compare reports, gate a pipeline",
    "monitoring": "metrics, alerts, logs and traces of a run",
    "search": "search hyper-parameters with the trainer as it is",
    "infra": "stand a cluster up; in a clone of the project, where the Pulumi programs are",
    "loop": "a stack up, bench, chaos, report, backup, down, by a time and a budget",
    "training": "the trainer by itself",
    "serving": "from a finished training to an end point, and what that bears",
}
"""Folder, which is the word for its program → what it is for."""
NAMES = {**{it: it for it in PROGRAMS}, "report": "reports", "monitor": "monitoring", "train": "training"}
"""What can be typed, too → the program."""


def parser() -> Parser:
    """What can stand first."""
    from proving_ground.bench.provenance import VERSION  # noqa: PLC0415 - it takes a moment, in which comes a Ctrl-C
    from proving_ground.bench.shell import Parser  # noqa: PLC0415 - the same

    about = "\n".join(f"  {word:<10} {text}" for word, text in PROGRAMS.items())
    made = Parser(
        prog="pg", description="Measure and break distributed training.", epilog=f"programs:\n{about}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    made.add_argument("--version", action="version", version=f"proving-ground {VERSION}")
    made.add_argument("program", choices=NAMES, metavar="PROGRAM", help="and its own words; each has --help")
    return made


def main() -> None:
    """Do what the words of this process say, and end it."""
    words = sys.argv[1:]
    if "_ARGCOMPLETE" in os.environ:
        complete()
    program = NAMES.get(words[0]) if words else None
    if program is None:
        parser().parse_args(words[:1])
        raise SystemExit(2)
    sys.argv = [f"pg {words[0]}", *words[1:]]
    start(program, words[1:])


def complete() -> None:
    """Leave the first word to this parser, and what follows to its program's, which is to see a line of its own."""
    import argcomplete  # noqa: PLC0415 - see above

    line, point = os.environ.get("COMP_LINE", ""), int(os.environ.get("COMP_POINT", "0"))
    rest = line.lstrip().partition(" ")[2]
    word = rest.lstrip().partition(" ")
    if not word[1] or word[0] not in NAMES:
        argcomplete.autocomplete(parser())
        return
    cut = len(line) - len(rest.lstrip())
    os.environ.update(COMP_LINE=line[cut:], COMP_POINT=str(max(0, point - cut)), _ARGCOMPLETE="1")
    start(NAMES[word[0]], [])


if __name__ == "__main__":
    main()
