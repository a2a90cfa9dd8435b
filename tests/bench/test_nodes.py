"""What is known of nodes: what does not fit there is refused, and what the plan and the report say of them."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench import clusters, nodes, rundir
from proving_ground.bench.agent import machine
from proving_ground.bench.cli import main
from proving_ground.bench.clusters.fake import FakeCluster
from proving_ground.bench.clusters.remote.slurm import shown
from proving_ground.bench.protocols import ClusterRequest, Emit, Node
from proving_ground.bench.spec import SpecError, Trial

TRIAL = Trial("t001", "c", "digits", ("strong",), 2, 1, 1, 8, 16, 100, 0, ranks_per_node=2)
CUDA = replace(TRIAL, training={"device": "cuda"})
SHARED = replace(TRIAL, training={"device": "cuda", "backend": "gloo"})
ROOMY = Node("n1", "10.0.0.1", slots=2, gpus=2)


@pytest.mark.parametrize(
    ("trial", "node", "says"),
    [
        (TRIAL, Node("n2", "10.0.0.2", slots=1), "case 'c': ranks_per_node = 2: n2 has 1 slot"),
        (TRIAL, Node("n2", "10.0.0.2", host="m7", slots=0), "case 'c': ranks_per_node = 2: n2 (m7) has 0 slots"),
        (CUDA, Node("n2", "10.0.0.2", gpus=1), "case 'c': ranks_per_node = 2: n2 has 1 GPU, and each rank is to have"),
        (replace(TRIAL, training={"backend": "nccl"}), Node("n2", "10.0.0.2", gpus=0), "n2 has 0 GPUs"),
        (CUDA, Node("n2", "10.0.0.2", gpus=0, shared_gpus=1), "n2 has 0 GPUs of the machine's 1, and each"),
        (SHARED, Node("n2", "10.0.0.2", gpus=0), "n2 has 0 GPUs, and each rank is to have one"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line(trial: Trial, node: Node, says: str) -> None:
    with pytest.raises(SpecError) as refused:
        nodes.refuse_what_does_not_fit([trial], [ROOMY, node])
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_fits_or_is_not_known_is_not_refused() -> None:
    unknown, bare = Node("n2", "10.0.0.2"), Node("n2", "10.0.0.2", slots=2, gpus=0)
    nodes.refuse_what_does_not_fit([CUDA], [ROOMY, unknown])
    nodes.refuse_what_does_not_fit([TRIAL], [ROOMY, bare])
    nodes.refuse_what_does_not_fit([CUDA], [ROOMY, ROOMY, bare])  # nobody trains on the third
    nodes.refuse_what_does_not_fit([SHARED], [replace(bare, shared_gpus=1)] * 2)  # Gloo lets ranks be on one GPU


def test_all_cases_that_do_not_fit_are_named() -> None:
    cases = [replace(CUDA, case=name) for name in ("a", "b", "a", "c")]
    with pytest.raises(SpecError, match=r"^case 'a': .*; these cases do not fit either: b, c$"):
        nodes.refuse_what_does_not_fit(cases, [Node("n1", "10.0.0.1", gpus=0)] * 2)


def test_nodes_of_a_kind_are_told_together() -> None:
    trains = [replace(ROOMY, zone="a"), replace(ROOMY, name="n2", zone="a")]
    found = nodes.with_roles([*trains, Node("n3", "x"), Node("n4", "x")], range(2, 3))
    recorded = [asdict(it) for it in found]
    assert nodes.in_words(recorded) == "n1, n2: 2 slots, 2 GPUs, zone a; n3: coordinates; n4: spare"
    assert nodes.in_words(recorded[:1]) == "n1: 2 slots, 2 GPUs, zone a"
    assert nodes.in_words([asdict(Node("n1", "x")), asdict(Node("n2", "x"))]) == "n1, n2"


@pytest.mark.parametrize(
    ("variable", "files", "count"),
    [
        (None, ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"], 2),
        (None, [], 0),
        (None, ["dxg"], None),
        ("0,2", ["nvidia0", "nvidia1", "nvidia2"], 2),
        ("", ["nvidia0"], 0),
        ("NoDevFiles", ["nvidia0"], 0),
    ],
)
def test_the_gpus_that_an_engine_left_a_process_are_what_it_has(
    variable: str | None, files: list[str], count: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    for name in files:
        (tmp_path / name).touch()
    monkeypatch.setattr(machine, "DEVICES", tmp_path)
    assert machine.gpus() == count


def test_what_slurm_says_of_a_node_is_read() -> None:
    said = shown("NodeName=e1 Arch=x86_64 CPUTot=64 ActiveFeatures=a100,ib Gres=(null) NodeAddr=10.9.0.2 Comment=a b")
    assert (said["CPUTot"], said["ActiveFeatures"], said["NodeAddr"]) == ("64", "a100,ib", "10.9.0.2")
    assert "Gres" not in said


class Small(FakeCluster):
    """Has nodes with room for one rank."""

    def setup(self, request: ClusterRequest, emit: Emit) -> list[Node]:
        return [replace(it, slots=1) for it in super().setup(request, emit)]


def run(folder: Path, *words: str) -> int:
    return main(["--runs", str(folder), "run", "--suite", "smoke", "--cluster", "fake", "--quiet", *words])


def test_the_plan_and_the_report_of_a_run_tell_its_nodes(tmp_path: Path) -> None:
    assert run(tmp_path) == 0
    found: Any = rundir.find(tmp_path).read("plan")["cluster"]["nodes"]
    assert [(it["name"], it["zone"], it["role"]) for it in found] == [("n1", "a", "trains"), ("n2", "b", "trains")]
    assert "n1: zone a; n2: zone b" in (rundir.find(tmp_path).path / "report.html").read_text()


def test_a_run_that_does_not_fit_its_nodes_is_refused_with_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(clusters.CLUSTERS, "fake", Small)
    suite = tmp_path / "two.toml"
    suite.write_text(
        'title = "x"\nnodes = [2]\nrepeats = 1\n[[case]]\nname = "c"\nworkload = "digits"\nglobal_batch = 8\n'
        "steps = 5\nestimated_step_s = 0.1\nranks_per_node = 2\n"
    )
    assert main(["--runs", str(tmp_path), "run", "--suite", str(suite), "--cluster", "fake"]) == 2
    assert capsys.readouterr().err.strip().splitlines()[-1].endswith("case 'c': ranks_per_node = 2: n1 has 1 slot")
