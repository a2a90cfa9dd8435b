# PYTHON_ARGCOMPLETE_OK
"""`pg PROGRAM …` and `python -m proving_ground PROGRAM …`: one way in to all command lines, from any folder.

`pg bench plan` is `python -m bench plan`. Also the place that completes `pg` in a shell.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.shell import Parser

HERE = Path(__file__).parent.parent
PROGRAMS: Mapping[str, tuple[str, str]] = {
    "bench": ("bench", "measure how training scales"),
    "chaos": ("chaos", "break training on purpose, and judge how it recovers"),
    "report": ("reports", "make and compare reports, gate a pipeline"),
    "monitor": ("monitoring", "metrics, alerts, logs and traces of a run"),
    "search": ("search", "search hyper-parameters with the trainer as it is"),
    "infra": ("infra", "stand a cluster up; in a clone of the project, where the Pulumi programs are"),
    "loop": ("loop", "a stack up, bench, chaos, report, backup, down, by a time and a budget"),
    "train": ("training", "the trainer by itself"),
    "serving": ("serving", "from a finished training to an end point, and what that bears"),
}
"""Word → the package behind it, and what it is for. A package's own name will do too."""
NAMES = {**{word: package for word, (package, _) in PROGRAMS.items()}, **{it: it for it, _ in PROGRAMS.values()}}


def parser() -> Parser:
    """What can stand first."""
    from bench.provenance import VERSION  # noqa: PLC0415 - here nothing is imported by which a Ctrl-C takes its time
    from bench.shell import Parser  # noqa: PLC0415 - the same

    about = "\n".join(f"  {word:<8} {text}" for word, (_, text) in PROGRAMS.items())
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
    refuse_another("bench")
    program = NAMES.get(words[0]) if words else None
    if program is None:
        parser().parse_args(words[:1])
        raise SystemExit(2)
    refuse_another(program)
    from bench.start import start  # noqa: PLC0415 - not before it is known to be ours

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
    from bench.start import start  # noqa: PLC0415 - see above

    cut = len(line) - len(rest.lstrip())
    os.environ.update(COMP_LINE=line[cut:], COMP_POINT=str(max(0, point - cut)), _ARGCOMPLETE="1")
    start(NAMES[word[0]], [])


def refuse_another(program: str) -> None:
    """End in one line where the program's package is another one: names such as `training` are not ours alone."""
    found = importlib.util.find_spec(program)
    file = Path(found.origin).resolve() if found and found.origin else None
    where = file.parent.parent if file and file.name == "__init__.py" else file
    if where != HERE.resolve():
        print(f"pg: the package {program!r} at {where} comes before ours at {HERE}; run pg elsewhere", file=sys.stderr)
        raise SystemExit(2)


if __name__ == "__main__":
    main()
