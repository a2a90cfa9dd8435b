"""Suite files: what is read, and what each mistake says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.spec import SpecError, Suite, as_document, load_suite, parse_nodes, suite_from, suite_names

GOOD = """
title = "T"
nodes = [1, 2]
[[case]]
name = "a"
workload = "digits"
steps = 10
estimated_step_s = 0.1
batch_per_node = 8
"""


def load(tmp_path: Path, text: str) -> Suite:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    return load_suite(str(file))


def test_a_suite_file_is_read(tmp_path: Path) -> None:
    suite = load(tmp_path, GOOD)
    assert (suite.name, suite.nodes, suite.cases[0].batch_per_node) == ("mine", (1, 2), 8)


@pytest.mark.parametrize("name", suite_names())
def test_the_shipped_suites_are_read_and_survive_json(name: str) -> None:
    suite = load_suite(name)
    again = suite_from(json.loads(json.dumps(as_document(suite))), where="spec.json", name=name)
    assert again == suite


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("steps = 10", "stepps = 10"), r"mine.toml: case 1: unknown key 'stepps'; allowed: name, workload, steps"),
        (("steps = 10", ""), r"mine.toml: case 1: key 'steps' is missing"),
        (("steps = 10", 'steps = "10"'), r"mine.toml: case 1: steps: must be a whole number, not '10'"),
        (("steps = 10", "steps = true"), r"steps: must be a whole number, not True"),
        (("steps = 10", "steps = 0"), r"case 'a': steps: 0 is out of range; allowed: 1 to 1e\+07"),
        (("steps = 10", "steps = 10\nwarmup_steps = 10"), r"warmup_steps: 10 is out of range; allowed: 0 to 9"),
        (("steps = 10", "steps = 10\nlink_mbps = -5"), r"link_mbps: -5 is out of range; allowed: 1 to 400000"),
        (("steps = 10", "steps = 10\nefficiency_min = {2 = 90}"), r"efficiency_min of 2 nodes: 90 is out of range"),
        (("steps = 10", "steps = 10\nefficiency_min = {two = 0.9}"), r"efficiency_min: 'two' is no node count"),
        (("steps = 10", "steps = 10\ncpus_per_node = 0"), r"cpus_per_node: 0 is out of range"),
        (("batch_per_node = 8", ""), r"needs batch_per_node \(weak scaling\), global_batch"),
        (('name = "a"', 'name = "A b"'), r"name: small letters, digits and hyphens only"),
        (("nodes = [1, 2]", "nodes = [2, 1]"), r"nodes: \[2, 1\] are not ascending"),
        (("nodes = [1, 2]", "nodes = [0]"), r"nodes: \[0\]; allowed: ascending whole numbers from 1 to 64"),
        (("nodes = [1, 2]", "nodes = [1, 2]\ndisk_mb = 0"), r"disk_mb: 0 is out of range"),
        (("nodes = [1, 2]", "nodes = [1, 2]\nmonitor_factor = 0"), r"monitor_factor: 0.* is out of range"),
        (("nodes = [1, 2]", "nodes = [1, 2]\nrepeats = 0"), r"repeats: 0 is out of range; allowed: 1 to 1000"),
        (("[[case]]", "[[cases"), r"mine.toml: .*line"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        load(tmp_path, GOOD.replace(*change))


def test_a_suite_without_cases_is_refused() -> None:
    with pytest.raises(SpecError, match=r"at least one \[\[case\]\]"):
        suite_from({"title": "T", "nodes": [1]}, where="x", name="x")


def test_two_cases_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="two cases have the same name"):
        load(tmp_path, GOOD + GOOD[GOOD.index("[[case]]") :])


def test_an_unknown_suite_names_the_known_ones() -> None:
    with pytest.raises(SpecError, match=r"no suite 'scalling'; allowed: .*scaling, smoke"):
        load_suite("scalling")


def test_node_lists_are_read() -> None:
    assert parse_nodes("1,2,4,8") == (1, 2, 4, 8)


@pytest.mark.parametrize("text", ["0", "3,x", "4,2,2", "", "1,,2", "-1", "1.5", "65", "²"])
def test_node_lists_of_nonsense_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match=r"--nodes: nodes: .*such as 1,2,4,8"):
        parse_nodes(text)


@given(st.text(max_size=20))
def test_any_node_list_is_read_or_refused(text: str) -> None:
    try:
        counts = parse_nodes(text)
    except SpecError:
        return
    assert list(counts) == sorted(set(counts))
    assert counts[0] >= 1
