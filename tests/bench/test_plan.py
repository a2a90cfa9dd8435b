"""Plans: order, sharing of trials, labels, refusals."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench.clusters.fake import FakeCluster
from proving_ground.bench.plan import CONTENTION, Plan, make_plan, patience_s
from proving_ground.bench.protocols import Ability, Node, TrialFiles
from proving_ground.bench.spec import Case, SpecError, Suite, Trial
from proving_ground.bench.workloads import Command, Trainer


class Limited(FakeCluster):
    """A cluster that can do only what it is told."""

    def __init__(self, abilities: Sequence[str], imitated: Sequence[str] = ("nodes: namespaces",)) -> None:
        super().__init__()
        self._can, self._stands_in = abilities, imitated

    def abilities(self) -> Sequence[Ability]:
        return [Ability(name, yes=name in self._can, how="test") for name in ("namespaces", "links", "cpu_shares")]

    def imitated(self) -> Sequence[str]:
        return self._stands_in


def plan(suite: Suite, cluster: FakeCluster | None = None) -> Plan:
    return make_plan(suite, cluster or FakeCluster(), {"command": Command()})


def test_every_size_is_there_once_a_repeat_for_weak_and_strong(suite: Suite) -> None:
    trials = plan(suite).trials
    cells = [(scaling, it.nodes, it.repeat) for it in trials for scaling in it.scaling]
    assert sorted(cells) == sorted(
        (scaling, nodes, repeat) for scaling in ("weak", "strong") for nodes in (1, 2, 4) for repeat in (1, 2)
    )


def test_weak_and_strong_share_a_trial_where_they_ask_the_same(suite: Suite) -> None:
    shared = [it for it in plan(suite).trials if it.scaling == ("weak", "strong")]
    assert {(it.nodes, it.global_batch) for it in shared} == {(2, 16)}


def test_repeats_are_interleaved_and_the_order_is_seeded(suite: Suite) -> None:
    trials = plan(suite).trials
    assert [it.repeat for it in trials] == sorted(it.repeat for it in trials)
    assert trials == plan(suite).trials
    order = [(it.nodes, it.scaling) for it in trials]
    others = [[(it.nodes, it.scaling) for it in plan(replace(suite, seed=seed)).trials] for seed in range(2, 6)]
    assert any(other != order for other in others)


def test_a_first_figure_comes_soon(suite: Suite) -> None:
    """The quickest case begins, with its smallest size and the next."""
    slow, quick = (
        replace(suite.cases[0], name=name, estimated_step_s=step_s) for name, step_s in (("slow", 9.0), ("quick", 0.1))
    )
    for seed in range(5):
        trials = plan(replace(suite, seed=seed, cases=(slow, quick))).trials
        assert {(it.case, it.nodes, "weak" in it.scaling) for it in trials[:2]} == {
            ("quick", 1, True), ("quick", 2, True)
        }  # fmt: skip
        assert sorted(cell(it) for it in trials) == sorted({cell(it) for it in trials})


def test_what_has_faults_runs_in_its_order() -> None:
    """A replay makes the steps again that its job has made, and a twin goes as far as every job of its case."""
    command = {"argv": ["./train"], "pattern": {"step": r"step (?P<step>\d+)"}}
    case = Case(
        "own", "command", steps=200, warmup_steps=5, estimated_step_s=0.05, batch_per_node=32, mechanism="restart",
        min_nodes=2, twins=(3,), command=command, faults=({"kind": "worker_kill", "after_steps": 20},),
    )  # fmt: skip
    trials = plan(Suite("unit", "Unit", (2, 3), (case,), repeats=2)).trials
    assert [it.role for it in trials if not it.twin_of] == [""] * 4
    assert [bool(it.twin_of) for it in trials] == sorted(bool(it.twin_of) for it in trials)


def cell(it: Trial) -> tuple[str, int, int, int]:
    return it.case, it.nodes, it.global_batch, it.repeat


def test_trial_ids_are_unique(suite: Suite) -> None:
    ids = [it.id for it in plan(suite).trials]
    assert len(set(ids)) == len(ids)


def test_a_cluster_with_nothing_imitated_gives_real_labels(suite: Suite) -> None:
    trials = plan(suite, Limited((), imitated=())).trials
    assert {(it.label, it.imitated, it.link_mbps) for it in trials} == {("real", (), None)}


def with_link(suite: Suite) -> Suite:
    return replace(suite, cases=(replace(suite.cases[0], link_mbps=100.0, cpus_per_node=0.2),))


def test_paced_compute_is_never_real_wherever_it_runs(suite: Suite) -> None:
    case = replace(suite.cases[0], name="r18", workload="resnet18", command={}, training={}, link_mbps=None)
    cluster = Limited([], imitated=())
    (trial, *_) = make_plan(replace(suite, cases=(case,)), cluster, {"resnet18": Trainer("paced", "resnet18")}).trials
    assert trial.label == "emulated"
    assert [words.partition(":")[0] for words in trial.imitated] == ["accelerator"]


def test_what_is_imitated_is_said(suite: Suite) -> None:
    trial = plan(with_link(suite), Limited(("namespaces", "links", "cpu_shares"))).trials[0]
    assert trial.label == "emulated"
    assert any("100 Mb/s" in words for words in trial.imitated)
    assert any("0.2 of this machine's cores" in words for words in trial.imitated)
    assert CONTENTION not in trial.imitated


@pytest.mark.parametrize(
    ("training", "nodes", "cores"),
    [
        ({}, (1,), 1.0),
        ({"device": "cpu"}, (1,), 1.0),
        ({"device": "cuda"}, (1,), 15.6),
        ({"device": "cuda"}, (1, 2), 7.8),
    ],
)
def test_a_gpu_is_fed_by_all_cores_of_its_node(
    suite: Suite, monkeypatch: pytest.MonkeyPatch, training: dict[str, Any], nodes: tuple[int, ...], cores: float
) -> None:
    """A share of one core held a GPU's trainer back; a CPU's computes by one thread."""
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    case = replace(suite.cases[0], workload="digits", command={}, training=training, cpus_per_node=None)
    made = make_plan(replace(suite, cases=(case,), nodes=nodes), Limited(("namespaces", "cpu_shares")))
    assert {it.cpus_per_node for it in made.trials} == {cores}


def test_what_the_cluster_cannot_imitate_is_dropped_and_said(suite: Suite) -> None:
    trial = plan(with_link(suite), Limited(("namespaces",))).trials[0]
    assert (trial.link_mbps, trial.cpus_per_node) == (None, None)
    assert CONTENTION in trial.imitated


def test_paced_compute_needs_no_cpu_shares(suite: Suite) -> None:
    case = replace(suite.cases[0], workload="resnet50", command={}, training={"profile": "resnet50-cpu"})
    made = make_plan(
        replace(suite, cases=(case,)), Limited(("namespaces",)), {"resnet50": Trainer("paced", "resnet50")}
    )
    assert CONTENTION not in made.trials[0].imitated
    assert any("resnet50-cpu" in words for words in made.trials[0].imitated)


class Pair(FakeCluster):
    """A cluster of two nodes."""

    capacity = 2
    has_volume = False


@pytest.mark.parametrize(
    ("mechanism", "says"), [("", "needs 4 nodes, and"), ("restart", "needs 5 nodes [(]one of them")]
)
def test_more_nodes_than_a_cluster_has_are_refused(suite: Suite, mechanism: str, says: str) -> None:
    cases = tuple(replace(case, mechanism=mechanism) for case in suite.cases)
    with pytest.raises(SpecError, match=f"{says}.* cluster fake has 2; --nodes asks for fewer"):
        plan(replace(suite, cases=cases), Pair())
    assert plan(replace(suite, nodes=(1, 2)), Pair()).trials
    with pytest.raises(SpecError, match=r"needs a folder that all nodes share.*--cluster fake:…,volume="):
        plan(replace(suite, nodes=(1, 2), volume_mb=64), Pair())


def test_ranks_of_a_node_follow_each_other_and_share_its_batch(suite: Suite, tmp_path: Path) -> None:
    case = replace(suite.cases[0], workload="command", command={"argv": ["true"]}, training={}, ranks_per_node=2)
    case = replace(case, batch_per_node=5, global_batch=None)
    (trial, *_) = [it for it in plan(replace(suite, nodes=(2,), cases=(case,))).trials if it.nodes == 2]
    nodes = [Node("n1", "10.0.0.1", 31000), Node("n2", "10.0.0.2")]
    specs = Command().processes(trial, nodes, TrialFiles(tmp_path, tmp_path, tmp_path))
    assert [it.name for it in specs] == ["n1.0", "n1.1", "n2.0", "n2.1"]
    keys = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_WORLD_SIZE")
    assert [" ".join(it.env[key] for key in keys) for it in specs] == [
        "0 4 0 2 0 2", "1 4 1 2 0 2", "2 4 0 2 1 2", "3 4 1 2 1 2",
    ]  # fmt: skip
    assert {(it.env["MASTER_PORT"], it.env["PROVING_GROUND_BATCH"]) for it in specs} == {("31000", "3")}
    assert len({it.events for it in specs}) == len({it.log for it in specs}) == 4


@pytest.mark.parametrize(
    ("about", "says"),
    [
        ({"batch_per_node": 1}, "batch_per_node 1 is smaller than ranks_per_node"),
        ({"batch_per_node": None, "global_batch": 3}, "global_batch 3 is smaller than 4 ranks"),
    ],
)
def test_ranks_that_cannot_be_are_refused(suite: Suite, about: dict[str, Any], says: str) -> None:
    case = replace(suite.cases[0], ranks_per_node=2, batch_per_node=8, global_batch=None)
    with pytest.raises(SpecError, match=says):
        plan(replace(suite, nodes=(2,), cases=(replace(case, **about),)))


def test_an_unknown_workload_is_refused(suite: Suite) -> None:
    with pytest.raises(SpecError, match="unknown workload 'resnet'; allowed: command"):
        plan(replace(suite, cases=(replace(suite.cases[0], workload="resnet"),)))


def test_an_unknown_profile_is_refused(suite: Suite) -> None:
    case = replace(suite.cases[0], workload="resnet50", command={}, training={"profile": "nothing"})
    with pytest.raises(SpecError, match=r"unknown profile 'nothing'; allowed: .*resnet50-cpu"):
        make_plan(replace(suite, cases=(case,)), FakeCluster(), {"resnet50": Trainer("paced", "resnet50")})


@pytest.mark.parametrize(
    ("workload", "training", "says"),
    [
        ("digits", {"model": "stocks"}, "training: model is decided by the plan; set the case's workload instead"),
        ("digits", {"global_batch": 8}, "training: global_batch is decided by the plan; set the case's global_batch"),
        ("digits", {"seed": 3}, "training: seed is decided by the plan; set the suite's seed"),
        ("collectives", {"rounds": 3}, "training: rounds is decided by the plan; set the case's steps"),
        ("resnet50", {"pace": "x"}, "training: pace = 'x': must be a number"),
        ("resnet50", {"profile": "../x"}, "unknown profile '../x'; allowed: resnet152-h200"),
        ("digits", {"reduction": "exact", "shards": 1000000007}, "try global_batch = 1000000007 or shards = 8"),
        ("digits", {"lrr": 1}, "training: unknown key 'lrr'; allowed: model"),
        ("collectives", {"sizes": [0]}, "training: sizes, item 1 = 0: must be at least 4"),
        ("vit-tiny", {"parallel": "fsdp", "replicas": 2}, "replicas = 2 does not divide 1 rank (1 node of 1)"),
    ],
)
def test_settings_that_no_trial_could_have_are_refused(
    suite: Suite, workload: str, training: dict[str, object], says: str
) -> None:
    case = replace(suite.cases[0], workload=workload, training=training, command={}, efficiency_min={})
    case = replace(case, global_batch=8, batch_per_node=None, dilation=2.0 if workload == "resnet50" else 1.0)
    with pytest.raises(SpecError, match=re.escape(says)):
        make_plan(replace(suite, nodes=(1, 2), cases=(case,)), FakeCluster())


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ({"argv": "true"}, "argv = 'true': must be a list"),
        ({"argv": []}, "argv must be a list of words"),
        ({"argv": ["a\0b"]}, "argv, item 1 = .*: must be a text without NUL"),
        ({"argv": ["true"], "env": [1]}, r"env = \[1\]: must be a table"),
        ({"argv": ["true"], "env": {"A": [1]}}, r"env.A = \[1\]: must be a text or a whole number or a number"),
        ({"argv": ["true"], "env": {"A=B": 1}}, "must be a variable's name"),
        ({"argv": ["true"], "pattern": 3}, "pattern = 3: must be a table"),
        ({"argv": ["true"], "pattern": {"step": 3}}, "pattern.step = 3: must be a text"),
        ({"argv": ["true"], "env": {"HF_TOKEN": "x"}}, "HF_TOKEN looks like a secret"),
        ({"argv": ["true"], "env": {"AWS_SECRET_ACCESS_KEY": "x"}}, "AWS_SECRET_ACCESS_KEY looks like a secret"),
        ({"argv": ["true", "--api-key=x"]}, "api_key looks like a secret"),
        ({"argv": ["true", "--api-key", "x"]}, "api_key looks like a secret"),
        ({"argv": ["true"], "argw": 3}, "unknown key 'argw'; allowed: argv, env, pattern"),
    ],
)
def test_a_command_that_cannot_be_started_is_refused(suite: Suite, command: dict[str, object], says: str) -> None:
    case = replace(suite.cases[0], workload="command", training={}, command=command)
    with pytest.raises(SpecError, match=f"command: .*{says}|command: {says}"):
        make_plan(replace(suite, cases=(case,)), FakeCluster())


def test_the_trainer_s_own_command_is_an_entry_at_most(suite: Suite) -> None:
    case = replace(suite.cases[0], workload="digits", training={}, command={"entry": "mine:main"})
    assert make_plan(replace(suite, cases=(case,)), FakeCluster()).trials
    with pytest.raises(SpecError, match="command: unknown key 'argv'; allowed: entry"):
        make_plan(replace(suite, cases=(replace(case, command={"argv": ["true"]}),)), FakeCluster())


def test_what_only_sounds_like_a_secret_is_fine(suite: Suite) -> None:
    env = {"TOKENIZERS_PARALLELISM": "false", "MAX_TOKENS": 3, "KEY_FRAMES": 2}
    for words in ("a=b", "--token $TOKEN --api-key=$KEY", "--secret --lr 3", "--use_auth_token True --num-token 512",
                  "--pad-token=<pad> --token-file /run/token"):  # fmt: skip
        argv = ["true", *words.split()]
        case = replace(suite.cases[0], workload="command", training={}, command={"argv": argv, "env": env})
        assert plan(replace(suite, cases=(case,))).trials


def test_a_secret_in_what_stands_in_for_a_case_is_refused(suite: Suite) -> None:
    instead = ({"command": {"argv": ["true"], "env": {"HF_TOKEN": "x"}}},)
    case = replace(suite.cases[0], workload="command", training={}, command={"argv": ["true"]}, instead=instead)
    with pytest.raises(SpecError, match="HF_TOKEN looks like a secret"):
        plan(replace(suite, cases=(case,)))


def test_more_trials_than_anybody_could_wait_for_are_refused(suite: Suite) -> None:
    cases = tuple(replace(suite.cases[0], name=f"c{number}", repeats=1000) for number in range(11))
    with pytest.raises(SpecError, match="trials; allowed: at most 10000"):
        plan(replace(suite, cases=cases))


def test_a_batch_smaller_than_the_nodes_is_refused(suite: Suite) -> None:
    with pytest.raises(SpecError, match="global_batch 2 is smaller than 4 nodes"):
        plan(replace(suite, cases=(replace(suite.cases[0], global_batch=2),)))


def test_the_document_is_what_the_readme_says(suite: Suite) -> None:
    document = plan(suite).document()
    assert set(document) == {
        "trials", "refused", "decided", "cluster", "estimate_s", "profiles", "looks", "further",
    }  # fmt: skip


def own(**command: Any) -> Case:
    table = {"argv": ["python", "train.py"], "pattern": {"step": r"step (?P<step>\d+)"}, **command}
    return Case("own", "command", steps=4, estimated_step_s=0.1, batch_per_node=8, command=table)


def test_of_a_trainer_that_prints_on_rank_0_a_line_is_about_all_samples(suite: Suite, tmp_path: Path) -> None:
    trial = plan(replace(suite, nodes=(2,), cases=(own(tells="rank 0", cwd="/src"),))).trials[0]
    nodes = [Node(f"n{number}", f"10.0.0.{number}") for number in (1, 2)]
    specs = Command().processes(trial, nodes, TrialFiles(tmp_path, tmp_path, tmp_path))
    assert {it.env["PROVING_GROUND_SAMPLES"] for it in specs} == {"16"}
    assert all(tuple(it.argv[4:6]) == ("--cwd", "/src") for it in specs)


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (own(tells="somebody"), "'every rank' or 'rank 0'"),
        (replace(own(tells="rank 0", pattern={}), mechanism="restart"), "takes a pattern, or every rank tells"),
    ],
)
def test_who_tells_is_one_of_two_and_one_that_tells_for_all_prints(suite: Suite, case: Case, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        plan(replace(suite, cases=(case,)))


def test_company_can_be_declined(suite: Suite) -> None:
    kept = plan(replace(suite, cases=(own(),)), Limited(["links", "cpu_shares"])).trials
    assert {it.neighbours for it in kept} == {True}
    alone = replace(own(), neighbours=False)
    trials = plan(replace(suite, cases=(alone,)), Limited(["links", "cpu_shares"])).trials
    assert {it.neighbours for it in trials} == {False}
    assert not any("neighbours" in words for it in trials for words in it.imitated)


@pytest.mark.parametrize(("asked", "seconds"), [
    ({}, 91.5), ({"startup_s": 300.0}, 331.5), ({"estimated_step_s": 16.0}, 330), ({"patience_s": 5.0}, 5),
])  # fmt: skip
def test_who_starts_slowly_may_come_back_slowly(suite: Suite, asked: dict[str, float], seconds: float) -> None:
    case = replace(own(), mechanism="restart", faults=({"kind": "worker_kill"},), **asked)  # type: ignore[arg-type]
    assert {it.patience_s for it in plan(replace(suite, nodes=(2,), cases=(case,))).trials} == {seconds}


def test_who_tells_of_its_state_seldom_is_waited_for() -> None:
    assert patience_s(replace(own(), training={"fingerprint_every": 40})) == pytest.approx(patience_s(own()) + 25 * 0.1)
