"""A node is a job of its own: what Slurm is asked of an array. `tests/engines/test_slurm_array.py` has a real one."""

from __future__ import annotations

import pytest

from proving_ground.bench.clusters import choose
from proving_ground.bench.clusters.options import read_options
from proving_ground.bench.clusters.remote.cluster import AgentCluster
from proving_ground.bench.clusters.remote.pool import Moves, SaysWhy, TakesBack
from proving_ground.bench.clusters.remote.slurm import SlurmOptions, SlurmPool
from proving_ground.bench.clusters.remote.slurm_array import FIELDS, SlurmArrayPool
from proving_ground.bench.protocols import ClusterError
from proving_ground.bench.spec import SpecError
from tests.bench.remote.test_slurm import Told

ALL = """8|1|RUNNING|None|2026-11-25T17:34:48|e1
9|2|RUNNING|None|2026-11-25T17:34:49|e2
7|3|RUNNING|None|2026-11-25T17:34:48|e3
"""
"""The last element has the number of the array."""
LOST = ALL.replace("RUNNING|None|2026-11-25T17:34:49|e2", "PENDING|BeginTime|2026-11-25T17:36:50|")
ELSEWHERE = ALL.replace("17:34:49|e2", "17:36:51|e5")
NODE = "NodeName=e5 NodeAddr=127.0.0.5 CPUTot=8 ActiveFeatures=ib"


def pool(words: str = "", **answers: str | Exception) -> tuple[SlurmArrayPool, Told]:
    made, told = SlurmArrayPool(read_options(SlurmOptions, "slurm", f"array=true,{words}")), Told(**answers)
    made._slurm = told  # type: ignore[method-assign]
    made._job, made._name, made._work = "7", "proving-ground-r1", "/tmp/work"
    return made, told


def up(**answers: str | Exception) -> tuple[SlurmArrayPool, Told]:
    """One whose elements ran at first."""
    made, told = pool(squeue=ALL)
    made._where = {f"n{at}": host for at, host in enumerate(made._hosts(3, lambda _why: None), 1)}
    told.asked.clear()
    told.answers = answers
    return made, told


def test_an_option_makes_it_an_array() -> None:
    for words, array in (("slurm:main", False), ("slurm:main,requeue=true", False), ("slurm:main,array=true", True)):
        cluster = choose(words)[0]
        assert isinstance(cluster, AgentCluster)
        assert isinstance(cluster.pool, SlurmPool)
        assert isinstance(cluster.pool, SlurmArrayPool) == array
        assert isinstance(cluster.pool, Moves) == array


def test_each_element_has_one_node_and_is_begun_again() -> None:
    lines = pool("gres=gpu:8")[0]._script("name", 3, "(agent)\n").splitlines()
    assert {"--array=1-3", "--nodes=1", "--exclusive", "--requeue", "--gres=gpu:8"} <= {it[8:] for it in lines}
    assert not [it for it in lines if "no-kill" in it and it.startswith("#")]
    one = SlurmPool(read_options(SlurmOptions, "slurm", ""))._script("name", 3, "").splitlines()
    assert {"#SBATCH --nodes=3", "#SBATCH --no-kill", "#SBATCH --no-requeue"} <= set(one)
    assert not [it for it in one if "array" in it]


def test_the_line_to_a_node_goes_into_its_own_job_wherever_that_runs() -> None:
    made, _ = up()
    words = [made._into(node) for node in ("n1", "n2", "n3")]
    assert [it[2] for it in words] == ["--jobid=8", "--jobid=9", "--jobid=7"]
    assert all(it[:2] == ("srun", "--overlap") and "-w" not in it for it in words)


def test_a_requeue_names_the_element_and_never_the_whole_array() -> None:
    made, told = up(scontrol_requeue="")
    made.requeue(["n3", "n1"])
    assert told.asked == ["scontrol requeue 7_3", "scontrol requeue 7_1"], "7 would be all of them"


def test_a_gang_is_not_requeued_for_some_of_its_nodes() -> None:
    made, told = SlurmPool(SlurmOptions(requeue=True)), Told(scontrol_requeue="")
    made._slurm = told  # type: ignore[method-assign]
    made._job, made._where = "7", {"n1": "e1", "n2": "e2"}
    with pytest.raises(ClusterError, match="the job that would be requeued also has n2"):
        made.requeue(["n1"])
    assert not told.asked
    made.requeue(["n2", "n1"])
    assert told.asked == ["scontrol requeue 7"]


def test_a_node_is_what_its_element_has_since_that_began() -> None:
    made, told = up(squeue=ALL, sinfo="e2|allocated|none")
    before = made.machine("n2")
    assert before["id"] == "9 since 2026-11-25T17:34:49"
    told.answers = {"squeue": LOST, "sinfo": "e2|down*|Not responding"}
    lost = made.machine("n2")
    assert (lost["id"], lost["where"], lost["state"], lost["job"]) == ("", "e2", "down*", "PENDING")
    told.answers = {"squeue": ELSEWHERE, "sinfo": "e5|allocated|none"}
    back = made.machine("n2")
    assert (back["id"], back["where"]) == ("9 since 2026-11-25T17:36:51", "e5")
    told.answers = {"squeue": "", "sinfo": "e5|idle|none"}
    assert made.machine("n2")["id"] == "", "Slurm has forgotten it"


def test_a_node_that_comes_again_has_the_address_of_its_machine_now() -> None:
    made, told = up(scontrol_ping="", squeue=LOST)
    assert made.member("n2") is None
    told.answers = {"scontrol_ping": "", "squeue": ELSEWHERE, "scontrol_topology": "SwitchName=s2 Level=0"}
    told.answers |= {"scontrol_node": NODE}
    there = made.member("n2")
    assert there is not None
    assert (there.host, there.address, there.slots, there.zone) == ("e5", "127.0.0.5", 8, "s2")
    assert "--jobid=9" in there.argv


def test_what_a_lost_node_waits_for_is_said_in_slurm_s_words() -> None:
    made, told = up(scontrol_ping="", sinfo="")
    assert isinstance(made, SaysWhy)
    for lines, says in (
        (LOST, {"n2": "PENDING: BeginTime until 2026-11-25T17:36:50"}),
        (LOST.replace("2026-11-25T17:36:50", "N/A"), {"n2": "PENDING: BeginTime"}),  # nobody has looked at it since
        (LOST.replace("BeginTime", "Resources"), {"n2": "PENDING: Resources"}),
        ("slurm: a warning\n" + ALL, {}),
    ):
        told.answers["squeue"] = lines
        made._said()
        assert made.waits() == says


def test_an_element_that_has_ended_is_lost_for_good_and_all_of_them_are_the_end() -> None:
    made, told = up(scontrol_ping="", sinfo="")
    assert isinstance(made, TakesBack)
    for lines, lost, over in (
        (ALL, set(), ""),
        (ALL.replace("8|1|RUNNING|None", "8|1|TIMEOUT|TimeLimit"), {"n1"}, ""),
        (ALL.replace("RUNNING", "CANCELLED"), {"n1", "n2", "n3"}, "array 7 is over: CANCELLED: None"),
        ("", set(), ""),
    ):
        told.answers["squeue"] = lines
        made._said()
        assert (made.lost(), made.over(), made.waits()) == (lost, over, {})


def test_a_notice_is_of_one_element() -> None:
    script = pool("notice_s=60")[0]._script("name", 3, "(agent)\n")
    assert '"$SLURM_JOB_ID"' not in script
    assert script.count('"${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"') == 3
    assert "SLURM_ARRAY" not in SlurmPool(read_options(SlurmOptions, "slurm", "notice_s=60"))._script("name", 3, "")
    limit = next(it for it in pool("notice_s=60", scontrol_update="")[0].abilities() if it.name == "time_limit")
    assert (limit.yes, limit.how[-28:]) == (False, "of an array each has its own")


def test_all_elements_have_to_run_and_why_they_do_not_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proving_ground.bench.clusters.remote.slurm_array.LOOK_S", 0.0)
    waits = LOST.replace("BeginTime", "Resources")
    made, _ = pool()
    answers, said = [waits, waits, "", ALL], list[str]()

    def squeue(*command: str, script: str | None = None) -> str:
        assert (f"--format={FIELDS}" in command, script) == (True, None)
        return answers.pop(0)

    made._slurm = squeue  # type: ignore[method-assign]
    assert made._hosts(3, said.append) == ["e1", "e2", "e3"]
    assert said == ["2 of 3 machines are there: Resources"]


def test_an_element_that_has_ended_is_not_waited_for_nor_one_that_takes_too_long() -> None:
    made, _ = pool(squeue=ALL.replace("8|1|RUNNING|None", "8|1|FAILED|NonZeroExitCode"))
    with pytest.raises(ClusterError, match="slurm: job 8 of n1 is FAILED: NonZeroExitCode"):
        made._hosts(3, lambda _why: None)
    spent, _ = pool(squeue=LOST.replace("BeginTime", "AssocGrpCPUMinutesLimit"))
    with pytest.raises(SpecError, match="would never run: AssocGrpCPUMinutesLimit"):
        spent._hosts(3, lambda _why: None)
    late, _ = pool(squeue=LOST)
    late.wait_s = 0.0
    with pytest.raises(ClusterError, match=r"2 of 3 machines are there after 30 min \(BeginTime\); wait_min= allows"):
        late._hosts(3, lambda _why: None)


def test_the_story_is_of_each_element_and_of_every_machine_that_was_one_s() -> None:
    made, told = up(scontrol_ping="", squeue=ELSEWHERE, sinfo="e1|alloc|none\ne2|down*|x\ne3|alloc|none\ne5|alloc|none")
    said = made._said()
    assert {it for it in said if it.startswith("Node/")} == {"Node/e1", "Node/e2", "Node/e3", "Node/e5"}
    assert said["Job/9"] == ("RUNNING", "None")
    assert {made._about[it] for it in ("Job/9", "Node/e2", "Node/e5")} == {"n2"}
    assert any("--nodes=e1,e2,e3,e5" in it for it in told.asked)


def test_an_array_is_cleaned_once_by_its_number() -> None:
    line = "7|proving-ground-r9|elsewhere/1.2\n"
    made, told = pool()
    told.answers = {"squeue_--me": line * 3, "scontrol_update": ClusterError("slurm: no right")}
    assert made.clean(dry_run=True) == ["in use by elsewhere/1.2, let be: job 7, proving-ground-r9"]
    assert any("--format=%F|" in it for it in told.asked)
