"""The rules under promtool: each is tested, no change of a threshold or delay goes unnoticed, each has a runbook."""

from __future__ import annotations

import copy
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from proving_ground.monitoring import rules
from proving_ground.monitoring.metrics import METRICS
from proving_ground.monitoring.mistakes import MonitoringError
from proving_ground.monitoring.programs import program
from tests.monitoring.conftest import needs_prometheus

RUNBOOK = Path(__file__).parents[2] / "monitoring" / "runbook.md"
FILES = [file.name for file in rules.files()]
THRESHOLD = re.compile(
    r"(?P<before>(?:[<>]=?|==|!=)\s*(?:on \([^)]*\)\s*(?:group_left\s*)?)?)(?P<number>\d+(?:\.\d+)?)(?![\w.])"
)
FAR = 1e9  # a threshold of 0 is changed to one that nothing, or everything, is beyond


def all_rules() -> list[tuple[str, dict[str, Any]]]:
    return [(file.name, rule) for file in rules.files() for rule in rules.rules_of(rules.read(file))]


def changed_numbers(expression: str) -> Iterator[str]:
    for found in THRESHOLD.finditer(expression):
        number = float(found["number"])
        for other in (number * 1.3, number * 0.7) if number else (FAR, -FAR):
            yield f"{expression[: found.start('number')]}{other:g}{expression[found.end('number') :]}"


def mutants(rule: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """A rule with one thing changed: a threshold up or down, `for` gone or doubled; a record's value times 1.3."""
    if "record" in rule:
        yield "value", {**rule, "expr": f"({rule['expr']}) * 1.3"}
        return
    for number, expression in enumerate(changed_numbers(rule["expr"])):
        yield f"threshold-{number}", {**rule, "expr": expression}
    if "for" in rule:
        yield "at-once", {key: value for key, value in rule.items() if key != "for"}
        yield "late", {**rule, "for": rules.divided(rule["for"], 0.5)}
    yield "never", {**rule, "expr": f"({rule['expr']}) and on () vector(0) > 1"}


@needs_prometheus
def test_every_rule_file_is_right_and_its_tests_pass() -> None:
    rules.check(rules.files())
    rules.test(sorted(rules.TESTS.glob("*.yaml")))


@needs_prometheus
@pytest.mark.parametrize("name", FILES)
def test_every_changed_rule_fails_its_tests(name: str, tmp_path: Path) -> None:
    """The mutants: what a rule's tests do not notice, they do not test."""
    document = rules.read(rules.RULES / name)
    test = yaml.safe_load((rules.TESTS / name).read_text())
    made = {}
    for number, rule in enumerate(rules.rules_of(document)):
        label = rule.get("alert") or rule["record"]
        own = {**test, "tests": [it for it in test["tests"] if label in yaml.safe_dump(it)]}
        for what, mutant in mutants(rule):
            file = written(tmp_path / f"{number}-{what}", name, replaced(document, number, mutant), own)
            made[str(file)] = f"{label}: {what}: {mutant['expr']} for {mutant.get('for')}"
    assert made
    assert [made[file] for file in passing(list(made))] == []


def replaced(document: dict[str, Any], number: int, rule: dict[str, Any]) -> dict[str, Any]:
    changed = copy.deepcopy(document)
    for group in changed["groups"]:
        if number < len(group["rules"]):
            group["rules"][number] = rule
            break
        number -= len(group["rules"])
    return changed


def written(folder: Path, name: str, document: dict[str, Any], test: dict[str, Any]) -> Path:
    folder.mkdir()
    (folder / name).write_text(yaml.safe_dump(document))
    others = [str(rules.RULES / Path(it).name) for it in test["rule_files"] if Path(it).name != name]
    file = folder / "test.yaml"
    file.write_text(yaml.safe_dump({**test, "rule_files": [str(folder / name), *others]}))
    return file


def passing(files: list[str]) -> list[str]:
    """Of these test files those that pass; all in one process."""
    done = subprocess.run([program("promtool"), "test", "rules", *files], capture_output=True, text=True, check=False)
    parts = done.stdout.split("Unit Testing:")[1:]
    assert len(parts) == len(files)
    return [file for file, part in zip(files, parts, strict=True) if "SUCCESS" in part]


def test_every_rule_has_a_test() -> None:
    for name, rule in all_rules():
        text = (rules.TESTS / name).read_text()
        label = rule.get("alert") or rule["record"]
        assert f'alertname="{label}"' in text or f"expr: {label}\n" in text, label


@pytest.mark.parametrize("alert", rules.alerts(), ids=lambda it: str(it.name))
def test_an_alert_says_what_to_do_and_its_runbook_entry_exists(alert: rules.Alert) -> None:
    assert alert.severity in ("critical", "warning", "info")
    assert len(alert.summary) > 10
    assert len(alert.first) > 10
    page, _, anchor = alert.runbook.partition("#")
    assert RUNBOOK.parents[1] / page == RUNBOOK
    headings = [line[3:].strip().lower() for line in RUNBOOK.read_text().splitlines() if line.startswith("## ")]
    assert anchor == alert.name.lower()
    assert headings.count(anchor) == 1


def test_the_runbook_has_no_entry_for_what_is_no_alert() -> None:
    headings = {line[3:].strip() for line in RUNBOOK.read_text().splitlines() if line.startswith("## ")}
    assert headings == {alert.name for alert in rules.alerts()}


def test_no_rule_knows_what_the_nemesis_does() -> None:
    """An alert that listened to whoever breaks things would prove nothing."""
    assert [rule for _, rule in all_rules() if "chaos_" in rule["expr"]] == []


def test_rules_use_metrics_that_exist() -> None:
    names = set(METRICS) | {f"{name}{end}" for name in METRICS for end in ("_sum", "_count", "_bucket")}
    names |= {rule["record"] for _, rule in all_rules() if "record" in rule}
    pattern = re.compile(
        r"\b(?:training|recovery|checkpoint|communication|gpu|node|search|endpoint|queue|exporter|job)(?:_[a-z0-9]+)+\b"
    )
    for name, rule in all_rules():
        if name != "cluster.yaml":
            bare = re.sub(r"[a-z]+:[a-z_]+:[a-z0-9_]+", "", rule["expr"])
            assert set(pattern.findall(bare)) - names == set(), rule


@pytest.mark.parametrize(
    ("shipped", "expected"),
    [
        ("increase(x[5m]) > 0", "increase(x[5000ms]) > 0"),
        ("quantile_over_time(0.5, a:b:c2m[1h] offset 5m)", "quantile_over_time(0.5, a:b:c2m[60000ms] offset 5000ms)"),
        ("predict_linear(x{a='b'}[30m], 14400) < 0", "predict_linear(x{a='b'}[30000ms], 240) < 0"),
        ("time() - x > 300", "time() - x > 5"),
        ("time() - x > on (run) y", "time() - x > on (run) y"),
    ],
)  # fmt: skip
def test_the_live_variant_divides_windows_offsets_and_horizons(shipped: str, expected: str) -> None:
    assert rules.live_expression(shipped, 60) == expected


def test_the_live_variant_divides_every_duration_and_changes_nothing_else() -> None:
    for _, rule in all_rules():
        found = rules.live_rule(rule, 60)
        shipped = [rules.seconds(it[1]) for it in rules.IN_EXPRESSION.findall(rule["expr"])]
        assert [rules.seconds(it[1]) for it in rules.IN_EXPRESSION.findall(found["expr"])] == [
            it / 60 for it in shipped
        ]
        assert ("for" in found) is ("for" in rule)
        if "for" in rule:
            assert rules.seconds(found["for"]) == pytest.approx(rules.seconds(rule["for"]) / 60)
        assert found.get("labels") == rule.get("labels")
        assert rules.live_rule(rule, 1)["expr"].count("[") == rule["expr"].count("[")


@needs_prometheus
def test_the_live_variant_is_right_too(tmp_path: Path) -> None:
    rules.write_live(tmp_path, rules.LIVE_FACTOR)
    rules.check(rules.files(tmp_path))


@needs_prometheus
@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("groups: [{name: a, rules: [{alert: A, expr: 'sum('}]}]", "unclosed left parenthesis"),
        ("groups: [{name: a, rules: [{alert: A, exprr: x}]}]", "exprr"),
    ],
)
def test_a_wrong_rule_file_is_told_in_one_line(text: str, complaint: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(MonitoringError, match=r"mine\.yaml: ") as told:
        rules.check([file])
    assert complaint in str(told.value)
    assert "\n" not in str(told.value)


def test_a_rule_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(MonitoringError, match=r"none\.yaml: No such file or directory"):
        rules.read(tmp_path / "none.yaml")


@pytest.mark.parametrize("text", ["{", "[]", "groups: 3"])
def test_what_is_no_rule_file_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(MonitoringError, match=r"mine\.yaml: "):
        rules.read(file)
