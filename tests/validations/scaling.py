"""The default suite over many repeats: `python -m tests.validations scaling --minutes 30`, again and again.

One repeat of the default suite leaves wide intervals on a noisy machine; here repeats accumulate over sittings. Kept in
`reports/measured/scaling.json`: every value, with date and commit.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.validations import tables
from tests.validations.matrix import Kind
from tests.validations.matrix import main as measure

SCALING = Kind("scaling", __doc__, 20, lambda document: tables.scaling(document).splitlines())


def main(argv: Sequence[str]) -> int:
    """One sitting; exit status 1 if a trial failed."""
    return measure(argv, SCALING)
