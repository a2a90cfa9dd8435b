"""The parser of all command lines. Called by `bench.shell`, for those of the harness, and by `training.__main__`."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from proving_ground.training.typed import one_line, shortened, unknown

CHOICE = re.compile(r"argument (\S+): invalid choice: ['\"](.*)['\"] \(choose from (.*)\)")
"""How argparse refuses a word."""


class Parser(argparse.ArgumentParser):
    """A parser whose refusals are one line, with the name that was meant."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where help is; exit status 2."""
        if found := CHOICE.fullmatch(message):
            what = found[1].lower().removeprefix("--")
            message = unknown(what, found[2], re.findall(r"[\w.-]+", found[3]))
        self.exit(2, f"{self.prog.removeprefix('pg ')}: {one_line(message)}; help: {self.prog} --help\n")

    def parse_args(  # type: ignore[override] # of argparse's two forms, the one without a namespace of one's own
        self, args: Sequence[str] | None = None, namespace: None = None
    ) -> argparse.Namespace:
        """As argparse does it; an option that nobody knows is refused with the one that was meant there."""
        words = list(sys.argv[1:] if args is None else args)
        if self.commands and (first := self.unknown_before_the_command(words)):
            self.odd(first)  # its value would be taken for the command
        found, rest = self.parse_known_args(words, namespace)
        odd = next((it for it in rest if it.startswith("-")), None)
        if odd is not None:
            self.commands.get(getattr(found, "command", ""), self).odd(odd)
        if rest:
            self.error(f"too many words: {shortened(' '.join(rest))}")
        return found

    def unknown_before_the_command(self, words: Sequence[str]) -> str:
        """The first option before the command that nobody knows; empty: all are known."""
        rest = iter(words)
        for word in rest:
            name, _, value = word.partition("=")
            if not name.startswith("--"):
                break
            known = [action for it, action in self._option_string_actions.items() if it.startswith(name)]
            if not known:
                return name
            if known[0].nargs != 0 and not value:
                next(rest, "")
        return ""

    def odd(self, option: str) -> NoReturn:
        """Refuse an option that is not known here."""
        known = [it for it in self._option_string_actions if it.startswith("--")]
        self.error(unknown("option", option.partition("=")[0], known))

    @property
    def commands(self) -> Mapping[str, Parser]:
        """Name → the parser of a command."""
        every = (it.choices for it in self._actions if isinstance(it, argparse._SubParsersAction))  # noqa: SLF001 - same
        return next(every, {})
