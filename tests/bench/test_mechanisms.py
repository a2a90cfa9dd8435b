"""What each mechanism starts in place of a workload's processes."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.agent.server import local_elastic_agent

from proving_ground.bench import mechanisms
from proving_ground.bench.drive import silence_s
from proving_ground.bench.mechanisms import MECHANISMS, TrialSite, supervised
from proving_ground.bench.protocols import Node, ProcessSpec, TrialFiles
from proving_ground.bench.spec import SpecError, Trial
from proving_ground.bench.workloads import WORKLOADS

NODES = [Node(f"n{number}", f"10.77.0.{number}") for number in (1, 2, 3)]
RANK = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "10.77.0.1", "COLOUR": "red"}
TRAIN = ("python", "-m", "proving_ground.training", "run", "--config", "c.toml")


def started(folder: Path, mechanism: str, argv: tuple[str, ...] = TRAIN, entry: str = "") -> list[ProcessSpec]:
    """What runs on the nodes of a job of two."""
    trial = Trial("t001", "c", "digits", ("strong",), 2, 1, 1, 8, 16, 10, 0, mechanism=mechanism)
    trial = replace(trial, command={"entry": entry} if entry else {})
    specs = [ProcessSpec(node.name, 0, argv, RANK) for node in NODES[:2]]
    return supervised(specs, trial, NODES[: 2 + mechanisms.extra_nodes(trial)], TrialFiles(folder, folder, folder))


def started_in_pairs(folder: Path, mechanism: str) -> list[ProcessSpec]:
    """What runs on the nodes of a job of two with two ranks each; the coordinator's is left out."""
    trial = Trial("t001", "c", "digits", ("strong",), 2, 1, 1, 8, 16, 10, 0, ranks_per_node=2, mechanism=mechanism)
    trial = replace(trial, min_nodes=1)
    files = TrialFiles(folder / "events", folder / "logs", folder)
    nodes = NODES[: 2 + mechanisms.extra_nodes(trial)]
    made = supervised(WORKLOADS["digits"].processes(trial, nodes[:2], files), trial, nodes, files)
    return [spec for spec in made if not spec.serves]


def words(spec: ProcessSpec) -> str:
    """The command as one line."""
    return " ".join(spec.argv)


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_trainer_can_be_made_to_stand_still_and_no_server_trains(tmp_path: Path, name: str) -> None:
    made = started(tmp_path, name)
    assert [spec.serves for spec in made] == ([True] if MECHANISMS[name].own_node else []) + [False, False]
    assert all(Path(spec.env["PROVING_GROUND_CONTROL"]).is_dir() for spec in made if not spec.serves)
    assert all(spec.env["COLOUR"] == "red" for spec in made if not spec.serves)


def test_relaunched_trainers_keep_their_ranks_and_are_not_warm(tmp_path: Path) -> None:
    made = started(tmp_path, "relaunch")
    assert made[0].argv == ("python", "-u", "-m", "proving_ground.training", "run", "--config", "c.toml")
    assert made[0].env["RANK"] == "0"


def test_torchrun_meets_at_the_first_node_and_says_who_is_which_rank(tmp_path: Path) -> None:
    made = started(tmp_path, "torchrun")
    assert all("--rdzv-endpoint 10.77.0.1:" in words(spec) for spec in made)
    assert "--rdzv-conf" not in words(made[0])
    assert words(made[1]).endswith(
        "--local-addr 10.77.0.2 --max-restarts 1000 -m proving_ground.training run --config c.toml"
    )
    assert not {"RANK", "MASTER_ADDR"} & made[0].env.keys()


def test_tuned_torchrun_meets_at_a_node_of_its_own_in_little_time(tmp_path: Path) -> None:
    serve, *made = started(
        tmp_path, "torchrun-tuned", ("python", "-m", "proving_ground.training", "wrap", "./train.sh", "--fast")
    )
    assert (serve.node, serve.argv[3]) == ("n3", "coordinator")
    assert "--rdzv-endpoint 10.77.0.3:" in words(made[0])
    assert "last_call_timeout=1,keep_alive_interval=1," in words(made[0])
    assert words(made[0]).endswith("is_host=false -m proving_ground.training wrap ./train.sh --fast")
    assert made[0].env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"


def test_a_trainer_of_one_s_own_has_all_that_torchrun_sets_and_under_a_launcher_gets_it_from_there(
    tmp_path: Path,
) -> None:
    files = TrialFiles(tmp_path, tmp_path, tmp_path)
    trial = Trial("t001", "c", "command", ("weak",), 2, 1, 1, 8, 16, 10, 0, command={"argv": ["./train.sh", "$RANK"]})
    specs = WORKLOADS["command"].processes(trial, NODES[:2], files)
    assert specs[1].argv == ("python", "-m", "proving_ground.training", "wrap", "./train.sh", "$RANK")
    assert set(mechanisms.PLACE) <= specs[1].env.keys()
    assert (specs[1].env["GROUP_RANK"], specs[1].env["NODE_RANK"], specs[1].env["LOCAL_RANK"]) == ("1", "1", "0")
    scene = TrialSite(replace(trial, mechanism="restart"), NODES, files)
    assert not set(mechanisms.PLACE) & MECHANISMS["restart"].around(specs, scene)[1].env.keys()


def test_the_variables_are_those_of_torch(tmp_path: Path) -> None:
    source = inspect.getsource(local_elastic_agent)
    theirs = set(re.findall(r'"([A-Z_]+)": ', source[source.index("worker_env = {") :]))
    trial = Trial("t001", "c", "command", ("weak",), 1, 1, 1, 8, 16, 10, 0, command={"argv": ["true"]})
    (spec,) = WORKLOADS["command"].processes(trial, NODES[:1], TrialFiles(tmp_path, tmp_path, tmp_path))
    assert theirs - spec.env.keys() <= {"TORCHELASTIC_USE_AGENT_STORE", "TORCH_NCCL_ASYNC_ERROR_HANDLING"}


def test_live_trainers_meet_at_a_lighthouse_with_their_numbers_and_have_no_fixed_rank(tmp_path: Path) -> None:
    serve, *made = started(tmp_path, "live")
    assert serve.node == "n3"
    assert serve.argv[3:] == ("lighthouse", "--port", "29500", "--least", "2")
    assert words(made[1]).endswith(
        "live --nodes 2:2 --lighthouse 10.77.0.3:29500 --number 1 --address 10.77.0.2 run --config c.toml"
    )
    assert not {"RANK", "MASTER_ADDR"} & made[0].env.keys()


@pytest.mark.parametrize("name", ["restart", "live"])
def test_a_trainer_can_be_entered_elsewhere(tmp_path: Path, name: str) -> None:
    _, *made = started(tmp_path, name, entry="a.module:function")
    assert all("--entry a.module:function run --config c.toml" in words(spec) for spec in made)


@pytest.mark.parametrize(
    ("changes", "installed", "says"),
    [
        ({"nodes": 1}, True, "needs two nodes at least"),
        ({"workload": "command"}, True, "knows this project's trainer only"),
        ({}, False, r"needs torchft: pip install '\.\[live\]'"),
    ],
)
def test_what_cannot_be_live_is_refused_before_anything_starts(
    changes: dict[str, Any], *, installed: bool, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mechanisms, "find_spec", lambda _name: object() if installed else None)
    trial = Trial("t001", "c", "digits", ("strong",), 2, 1, 1, 8, 16, 10, 0, mechanism="live")
    with pytest.raises(SpecError, match=f"case 'c': mechanism 'live' {says}"):
        mechanisms.check(replace(trial, **changes))


@pytest.mark.parametrize(("name", "where"), [("", None), ("torchrun", "n1"), ("restart", "n3"), ("live", "n3")])
def test_where_the_nodes_meet(name: str, where: str | None) -> None:
    trial = Trial("t001", "c", "digits", ("strong",), 2, 1, 1, 8, 16, 10, 0, mechanism=name)
    assert mechanisms.coordinator_of(trial, ["n1", "n2", "n3"]) == where


def test_an_unknown_mechanism_is_refused_with_those_there_are() -> None:
    trial = Trial("t001", "c", "digits", ("strong",), 2, 1, 1, 8, 16, 10, 0, mechanism="hope")
    with pytest.raises(SpecError, match="mechanism 'hope'; allowed: relaunch, torchrun, torchrun-tuned, restart, live"):
        mechanisms.check(trial)


def test_a_trial_under_a_mechanism_may_stand_still_for_as_long_as_its_schedule_is_patient() -> None:
    calm = Trial("t001", "c", "digits", ("strong",), 2, 1, 1, 8, 16, 10, 0, patience_s=100, estimate_s=5)
    assert silence_s(calm) == 60
    assert silence_s(replace(calm, silence_s=600.0)) == 600
    assert silence_s(replace(calm, mechanism="restart", faults=({"hold_s": 50}, {}))) == 60 + 3 * 100 + 50


@pytest.mark.parametrize(
    ("mechanism", "says"),
    [("torchrun", "--nproc-per-node 2"), ("torchrun-tuned", "--nproc-per-node 2"), ("restart", "--workers 2")],
)
def test_a_launcher_starts_all_ranks_of_its_node_and_knows_their_files(
    tmp_path: Path, mechanism: str, says: str
) -> None:
    made = started_in_pairs(tmp_path, mechanism)
    assert [it.name for it in made] == ["n1.0", "n2.0"]
    assert all(says in words(it) and "1:2" in it.argv for it in made)
    assert list(made[1].event_files) == ["n2.0", "n2.1"]
    assert not set(mechanisms.PLACE) & made[0].env.keys(), "a launcher says who is which rank"
    further = {"EVENTS_1": "events/t001.n2.1.jsonl", "LOG_1": "logs/t001.n2.1.log"}
    assert {name: made[1].env[f"PROVING_GROUND_{name}"] for name in further} == {
        name: str(tmp_path / file) for name, file in further.items()
    }  # fmt: skip
    assert made[0].env["PROVING_GROUND_BATCH"] == "4"


@pytest.mark.parametrize("mechanism", ["relaunch", "live"])
def test_without_a_launcher_each_rank_is_a_process_of_its_own(tmp_path: Path, mechanism: str) -> None:
    made = started_in_pairs(tmp_path, mechanism)
    assert [it.name for it in made] == ["n1.0", "n1.1", "n2.0", "n2.1"]
    if mechanism == "live":
        assert list(made[2].argv[8:12]) == ["--number", "2", "--address", "10.77.0.2"]
        assert all("--nodes 2:4" in words(it) for it in made), "at least and at most are counted in ranks"
    else:
        keys = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
        assert [" ".join(it.env[key] for key in keys) for it in made] == [
            "0 4 0 2 0", "1 4 1 2 0", "2 4 0 2 1", "3 4 1 2 1",
        ]  # fmt: skip


def test_a_reference_of_several_ranks_a_node_is_one_process_that_makes_the_parts_of_all(tmp_path: Path) -> None:
    trial = Trial("t002", "c", "digits", ("strong",), 2, 1, 1, 8, 16, 10, 0, ranks_per_node=2, role="reference")
    files = TrialFiles(tmp_path, tmp_path, tmp_path)
    (spec,) = WORKLOADS["digits"].processes(trial, NODES[:2], files)
    assert "reference --ranks 4" in words(spec)
    assert (spec.env["RANK"], spec.env["WORLD_SIZE"]) == ("0", "1")


def test_a_model_that_is_cut_over_the_ranks_has_no_survivors_that_could_carry_on() -> None:
    trial = Trial("t001", "c", "vit-tiny", ("strong",), 2, 1, 1, 8, 16, 10, 0, mechanism="live")
    with pytest.raises(SpecError, match="'live' with parallel = 'fsdp': a node that is lost takes its part"):
        mechanisms.check(replace(trial, training={"parallel": "fsdp"}))
    mechanisms.check(replace(trial, mechanism="restart", training={"parallel": "fsdp"}))


def test_what_a_mechanism_is_travels_with_it_and_nobody_else_knows_its_name() -> None:
    named = re.compile(rf'"({"|".join(MECHANISMS)})"')
    root = Path(mechanisms.__file__).parents[2]
    files = [it for folder in ("bench", "chaos", "reports") for it in (root / folder).rglob("*.py")]
    assert [it.relative_to(root) for it in files if named.search(it.read_text())] == [Path("bench/mechanisms.py")]
    assert [name for name in MECHANISMS if mechanisms.has_survivors(name)] == ["live"]
    assert [name for name in MECHANISMS if not mechanisms.has_launchers(name)] == ["relaunch", "live"]
