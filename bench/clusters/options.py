"""The options of a cluster elsewhere, as they stand behind its name: `ssh:host1,host2,volume=/shared`."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from bench.spec import SpecError, build
from training.typed import unknown


def read_options(kind: type[Any], engine: str, words: str) -> Any:  # noqa: ANN401 - the engine's own dataclass
    """Options as `key=value,key=value`; a word without `=` is one more of the key before, at first of the first key.

    Raises:
        SpecError: names the key, and those that are allowed.
    """
    fields = {it.name: it for it in dataclasses.fields(kind)}
    found: dict[str, list[str]] = {}
    key = next(iter(fields))
    for word in filter(None, words.split(",")):
        if match := re.match(r"([a-z_]+)=(.*)", word):
            key, word = match.groups()  # noqa: PLW2901 - what is left of it
        if key not in fields:
            raise SpecError(f"cluster {engine}: {unknown('option', key, fields)}")
        found.setdefault(key, []).append(word)
    several = {name for name, it in fields.items() if str(it.type).startswith("tuple")}
    table = {name: values if name in several else ",".join(values) for name, values in found.items()}
    return build(kind, table, f"cluster {engine}")


def described(kind: type[Any], engine: str) -> str:
    """What can stand behind `--cluster ENGINE:`, a line each."""
    lines = [f"--cluster {engine}:KEY=VALUE,…; a word without = is one more of the key before, at first of the first"]
    for it in dataclasses.fields(kind):
        default = f" (default: {it.default})" if it.default not in ("", (), None) else ""
        lines.append(f"  {it.name:<12} {it.metadata['help']}{default}")
    return "\n".join(lines)
