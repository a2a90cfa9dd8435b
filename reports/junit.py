"""A run's verdicts and faults as JUnit XML, which CI systems show as tests. Called by `reports.commands` (`junit`).

A pass is a passed test, a fail a failed one. What cannot be told is skipped, with the reason: it is neither; with
`strict` it is an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree as ET

from proving_ground.reports.verdicts import FAIL, PASS, UNKNOWN

OUTCOMES = {"recovered": PASS, "wrong": FAIL, "stuck": FAIL, "slow": FAIL, "unproven": UNKNOWN, "invalid": UNKNOWN}
"""What became of a fault → the verdict on it."""
ILLEGAL = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # characters that XML cannot have


def text(results: Mapping[str, Any], *, strict: bool = False) -> str:
    """The whole document."""
    name = f"{results['suite']}/{results['run_id']}"
    judged = [("verdicts", it["check"], place(it["where"]), it["verdict"], it["why"]) for it in results["verdicts"]]
    faults = [of_fault(it) for it in results["trials"]]
    root = ET.Element("testsuites", name=legal(name))
    for rows in filter(None, (judged, faults)):
        suite(root, f"{name}/{rows[0][0]}", rows, results, strict=strict)
    count(root, root.findall("testsuite"))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


Row = tuple[str, str, str, str, str]  # kind, class, name, verdict, why


def of_fault(fault: Mapping[str, Any]) -> Row:
    """A fault as a test; a baseline beside the others is shown and not judged."""
    about = f"{fault['trial']}.{fault['fault']} {fault['mechanism']}, {fault['phase']}, {' '.join(fault['target'])}"
    verdict = OUTCOMES.get(fault["outcome"], UNKNOWN)
    why = f"{fault['outcome']}: {fault['why'] or 'nothing more is known'}"
    if fault.get("peer") and verdict == FAIL:
        return "faults", fault["kind"], about, UNKNOWN, f"a baseline, which is not judged: {why}"
    return "faults", fault["kind"], about, verdict, why


def suite(root: ET.Element, name: str, rows: Sequence[Row], results: Mapping[str, Any], *, strict: bool) -> None:
    """One `testsuite` with its cases."""
    made = ET.SubElement(root, "testsuite", name=legal(name))
    properties = ET.SubElement(made, "properties")
    ET.SubElement(properties, "property", name="cluster", value=legal(results["cluster"]))
    for kind, group, about, verdict, why in rows:
        case = ET.SubElement(
            made, "testcase", classname=legal(f"{results['suite']}.{kind}.{group}"), name=legal(about or group)
        )
        if verdict != PASS:
            tag = "failure" if verdict == FAIL else "error" if strict else "skipped"
            words = legal(why if verdict == FAIL else f"cannot tell: {why.removeprefix('cannot tell: ')}")
            ET.SubElement(case, tag, message=words)
    cases = made.findall("testcase")
    made.set("tests", str(len(cases)))
    for key, tag in COUNTED:
        made.set(key, str(sum(it.find(tag) is not None for it in cases)))


COUNTED = (("failures", "failure"), ("errors", "error"), ("skipped", "skipped"))


def count(root: ET.Element, suites: Sequence[ET.Element]) -> None:
    """The sums over all suites."""
    for key in ("tests", *(key for key, _ in COUNTED)):
        root.set(key, str(sum(int(it.get(key, "0")) for it in suites)))


def place(where: Mapping[str, Any]) -> str:
    """`digits weak nodes=4`."""
    return " ".join(str(value) if key in ("case", "scaling") else f"{key}={value}" for key, value in where.items())


def legal(words: str) -> str:
    """The text without what XML cannot have."""
    return ILLEGAL.sub("\N{REPLACEMENT CHARACTER}", words)
