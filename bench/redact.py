"""Takes secrets out of what is written down: user information and query values of addresses.

Called by `bench.provenance` (arguments), `serving.load` (addresses, locust's errors) and `monitoring.mlflow_store`.
"""

from __future__ import annotations

import re

ADDRESS = re.compile(r"[A-Za-z][\w+.-]*://(?:(?!,[A-Za-z][\w+.-]*://)\S)+")
USER = re.compile(r"//(?:[^/\s]*|[^\s/@:]*:(?!\d+[/?#])\S*)@")
"""A password may have a slash: SQLAlchemy takes one. A number before the slash is a port."""
VALUE = re.compile(r"([?#&;])([^=?#&;\s]*=)?[^?#&;\s]+")


def redacted(text: str) -> str:
    """The text with `…` for every query value of an address in it, and without users and passwords."""
    return ADDRESS.sub(lambda it: VALUE.sub(r"\1\2…", USER.sub("//", it[0])), text)
