"""The options of a cluster elsewhere, as they stand behind its name: `ssh:host1,host2,volume=/shared`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from typing import Any, TypeVar

from proving_ground.bench.spec import SpecError, build
from proving_ground.training.typed import unknown

T = TypeVar("T")  # the engine's own dataclass


def read_options(kind: type[T], engine: str, words: str) -> T:
    """Options as `key=value,key=value`; a word without `=` is one more of the key before, at first of the first key.

    Raises:
        SpecError: names the key, and those that are allowed.
    """
    fields = {it.name: it for it in dataclasses.fields(kind)}  # type: ignore[arg-type]  # it is one
    found: dict[str, list[str]] = {}
    key = next(iter(fields))
    for word in filter(None, words.split(",")):
        if match := re.match(r"([a-z_]+)=(.*)", word):
            key, word = match.groups()  # noqa: PLW2901 - what is left of it
        if key not in fields:
            raise SpecError(f"cluster {engine}: {unknown('option', key, fields)}")
        found.setdefault(key, []).append(word)
    table = {name: typed(",".join(values), values, fields[name].default) for name, values in found.items()}
    return build(kind, table, f"cluster {engine}")


def typed(word: str, values: list[str], default: object) -> object:
    """What was typed as a value of the default's type, where it is one; else the word, which is then refused."""
    if isinstance(default, tuple):
        return values
    if isinstance(default, bool | int | float):
        with contextlib.suppress(ValueError):
            return json.loads(word)
    return word


def described(kind: type[Any], engine: str) -> str:
    """What can stand behind `--cluster ENGINE:`, a line each."""
    lines = [f"--cluster {engine}:KEY=VALUE,…; a word without = is one more of the key before, at first of the first"]
    for it in dataclasses.fields(kind):
        default = f" (default: {it.default})" if it.default not in ("", (), None) else ""
        lines.append(f"  {it.name:<12} {it.metadata['help']}{default}")
    return "\n".join(lines)


def listed(kind: type[Any]) -> list[dict[str, Any]]:
    """The same for machines; what has to be said, or is not said, has no default."""
    return [
        {"name": it.name, "meaning": it.metadata["help"], "default": it.default if it.default not in ("", ()) else None}
        for it in dataclasses.fields(kind)
    ]
