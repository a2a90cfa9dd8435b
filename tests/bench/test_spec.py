"""Suite files: what is read, and what each mistake says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proving_ground.bench.spec import SpecError, Suite, as_document, load_suite, parse_nodes, suite_from, suite_names
from proving_ground.training.typed import LINE

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
        (('title = "T"', 'title = "T"\ncases = 3'), r"mine.toml: has case and cases; a suite's cases are written as"),
        (("steps = 10", 'steps = "10"'), r"mine.toml: case 1: steps = '10': must be a whole number"),
        (("steps = 10", "steps = true"), r"steps = True: must be a whole number"),
        (("steps = 10", "steps = 0"), r"case 1: steps = 0: must be 1 to 10000000"),
        (("steps = 10", "steps = 10\nwarmup_steps = 10"), r"warmup_steps: 10 is out of range; allowed: 0 to 9"),
        (("steps = 10", "steps = 10\nlink_mbps = -5"), r"link_mbps = -5: must be 1 to 400000"),
        (("steps = 10", "steps = 10\nefficiency_min = {2 = 90}"), r"efficiency_min\.2 = 90: must be 0 to 1"),
        (
            ("steps = 10", "steps = 10\nefficiency_min = {two = 0.9}"),
            r"efficiency_min = 'two': must be a node count",
        ),
        (("steps = 10", "steps = 10\ncpus_per_node = 0"), r"cpus_per_node = 0: must be 0.01 to 1024"),
        (("batch_per_node = 8", ""), r"needs batch_per_node \(weak scaling\), global_batch"),
        (('name = "a"', 'name = "A b"'), r"name = 'A b': must be at most 64 small letters, digits and hyphens"),
        (("nodes = [1, 2]", "nodes = [2, 1]"), r"nodes = \[2, 1\]: must be 1 or more node counts, ascending"),
        (("nodes = [1, 2]", "nodes = [0]"), r"nodes, item 1 = 0: must be 1 to 64"),
        (("nodes = [1, 2]", "nodes = [1, 2]\ndisk_mb = 0"), r"disk_mb = 0: must be 1 to 1000000"),
        (("nodes = [1, 2]", "nodes = [1, 2]\nmonitor_factor = 0"), r"monitor_factor = 0: must be 1 to 1000"),
        (("nodes = [1, 2]", "nodes = [1, 2]\nrepeats = 0"), r"repeats = 0: must be 1 to 1000"),
        (("[[case]]", "[[cases"), r"mine.toml: .*line"),
        (("steps = 10", 'steps = 10\ntwins = ["a"]'), r"case 1: twins, item 1 = 'a': must be a whole number"),
        (("steps = 10", "steps = 10\ntwins = [2, -2]"), r"case 1: twins, item 2 = -2: must be 1 to 64"),
        (("steps = 10", "steps = 10\ntwins = [1.5]"), r"case 1: twins, item 1 = 1.5: must be a whole number"),
        (("steps = 10", "steps = 10\nfaults = [5]"), r"case 1: faults, item 1 = 5: must be a table"),
        (("steps = 10", "steps = 10\nlink_mbps = nan"), r"case 1: link_mbps = nan: must be a number"),
        (("steps = 10", "steps = 1" + "0" * 400), r"steps = 10+…0+: must be 1 to 10000000"),
        (("steps = 10", "steps = 1" + "0" * 5000), r"mine.toml: .*digits"),
        (("steps = 10", "steps = " + "[" * 5000), r"mine.toml: nested too deeply"),
        (("steps = 10", 'steps = "' + "x" * 5000 + '"'), r"steps = 'x+…x+': must be a whole number"),
        (("nodes = [1, 2]", "nodes = [1, 2]\nvolume_mb = -5"), r"volume_mb = -5: must be 1 to 1000000"),
        (("nodes = [1, 2]", 'nodes = [1, 2]\nname = "../../x"'), r"name = '../../x': must be at most 64 letters"),
        (("nodes = [1, 2]", 'nodes = [1, 2]\nname = "latest"'), r"name = 'latest': must be .* not 'latest'"),
        (('title = "T"', 'title = "T\\u001b[31m"'), r"title = .*: must be one line"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    with pytest.raises(SpecError, match=message) as refused:
        load(tmp_path, GOOD.replace(*change))
    assert len(str(refused.value)) <= LINE
    assert "\n" not in str(refused.value)


def test_a_suite_without_cases_is_refused() -> None:
    with pytest.raises(SpecError, match=r"at least one \[\[case\]\]"):
        suite_from({"title": "T", "nodes": [1]}, where="x", name="x")


def test_two_cases_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="two cases have the same name"):
        load(tmp_path, GOOD + GOOD[GOOD.index("[[case]]") :])


def test_an_unknown_suite_names_the_known_ones() -> None:
    said = r"unknown suite 'scalling'; allowed: .*scaling, .*smoke.*did you mean 'scaling'"
    with pytest.raises(SpecError, match=said):
        load_suite("scalling")


def test_node_lists_are_read() -> None:
    assert parse_nodes("1,2,4,8") == (1, 2, 4, 8)


@pytest.mark.parametrize("text", ["0", "3,x", "4,2,2", "", "1,,2", "-1", "1.5", "65", "²"])
def test_node_lists_of_nonsense_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match=r"--nodes .*such as"):
        parse_nodes(text)


@given(st.text(max_size=20))
def test_any_node_list_is_read_or_refused(text: str) -> None:
    try:
        counts = parse_nodes(text)
    except SpecError:
        return
    assert list(counts) == sorted(set(counts))
    assert counts[0] >= 1
