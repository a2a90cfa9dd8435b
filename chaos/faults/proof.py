"""What proves that a fault happened, as data: conditions on the evidence that it leaves. Each `Fault` has its own.

A condition goes into `plan.json` with the fault, so that `reports.recovery.proof` can judge by it and know no fault by
name. `chaos/README.md` explains the words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Condition:
    """What a value of the evidence must be.

    `at` and `than` are paths: `begin.…` is the evidence of the injection, `end.…` that of the healing, `args.…` the
    fault's numbers, `target` the nodes that were aimed at. In a path `*` means each item and `+` the sum of them; two
    paths with `*` are compared item by item. `must` is a word of the table in `chaos/README.md`. What is compared with
    is `than`, times `times`, plus `plus`; without `than` it is `value`.
    """

    at: str
    must: str
    than: str = ""
    value: str | float | bool | None = None
    times: float = 1.0
    plus: float = 0.0
    means: str = ""  # in words, of what is then true
    only_with: str = ""  # a number of the fault's: where that is 0, nothing is asked
    by_the_job: bool = False  # whether it takes the job's doing: one that was still proves nothing, and denies nothing

    def document(self) -> dict[str, Any]:
        """As `plan.json` has it."""
        left_out = {"only_with", *(() if self.by_the_job else ("by_the_job",))}
        return {name: value for name, value in asdict(self).items() if name not in left_out}


Proof = tuple[Condition, ...]


def asked(proof: Proof, args: Mapping[str, float]) -> list[dict[str, Any]]:
    """The conditions for a fault with these numbers, as `plan.json` has them."""
    return [it.document() for it in proof if not it.only_with or args[it.only_with]]


def killed(only_with: str = "") -> Proof:
    """Something was killed on nodes that were aimed at, and by /proc nothing of it was left."""
    return (
        Condition("begin.killed", "some", means="something was killed", only_with=only_with),
        Condition("begin.killed.*.node", "among", "target", means="it was where it was aimed at", only_with=only_with),
        Condition("begin.left", "empty", means="nothing of it was left", only_with=only_with),
    )
