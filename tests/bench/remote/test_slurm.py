"""What Slurm is asked, and how what it says is read. `tests/engines/test_slurm_faults.py` has a real one."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from bench.clusters.options import read_options
from bench.clusters.remote.pool import Member, signature
from bench.clusters.remote.slurm import NOBODY, SlurmOptions, SlurmPool
from bench.clusters.remote.slurm_story import SlurmStory
from bench.protocols import ClusterError, ClusterRequest
from bench.spec import SpecError

CONFIG = """Configuration data as of 2026-11-25T17:31:27
KillWait                = 30 sec
SlurmdPort              = 6818
SlurmdTimeout           = 300 sec
UnkillableStepTimeout   = 60 sec
VSizeFactor             = 0 percent
"""
NODE = "NodeName=e2 NodeAddr=127.0.0.1 State=IDLE SlurmdStartTime=2026-11-25T17:34:26 Reason=x"


class Told:
    """Slurm's commands, with what they say; a table of words that a command has → its answer."""

    def __init__(self, **answers: str | Exception) -> None:
        self.answers, self.asked = answers, list[str]()

    def __call__(self, *command: str, script: str | None = None) -> str:
        del script
        self.asked.append(" ".join(command))
        known = self.answers.items()
        said = next(it for words, it in known if all(word in command for word in words.split("_")))
        if isinstance(said, Exception):
            raise said
        return said


def pool(words: str = "", **answers: str | Exception) -> tuple[SlurmPool, Told]:
    made, told = SlurmPool(read_options(SlurmOptions, "slurm", words)), Told(**answers)
    made._slurm = told  # type: ignore[method-assign]
    made._job, made._name, made._where = "7", "proving-ground-r1", {"n1": "e1", "n2": "e2"}
    return made, told


@pytest.mark.parametrize(("words", "line"), [("", "no-requeue"), ("requeue=true", "requeue")])
def test_a_job_is_started_again_only_where_that_is_asked_for(words: str, line: str) -> None:
    assert f"#SBATCH --{line}\n" in pool(words)[0]._script("name", 2, "")


@pytest.mark.parametrize(
    ("words", "why", "able"),
    [
        ("", ClusterError("slurm: slurm_update error: Invalid user id"), set()),
        ("", ClusterError("slurm: slurm_update error: Invalid node name specified"), {"operator"}),
        (
            "requeue=true,preempt=high,slurmd=/a,slurmctld=/b c,power=/d",
            ClusterError("slurm: slurm_update error: Invalid node name specified"),
            {"operator", "requeue", "preempt", "slurmd", "slurmctld", "power"},
        ),
    ],
)
def test_what_can_be_broken_is_a_matter_of_rights_and_programs(words: str, why: Exception, able: set[str]) -> None:
    made, told = pool(words, scontrol_update=why)
    assert {it.name for it in made.abilities() if it.yes} == able
    assert all(it.how.startswith(("no ", "without ")) for it in made.abilities() if not it.yes)
    assert told.asked == [f"scontrol update nodename={NOBODY} state=resume"], "it changes nothing"


def test_a_node_is_what_the_job_has_since_it_began() -> None:
    def of(job: str, sinfo: str = "e2|allocated|none") -> tuple[str, str, str]:
        made, _ = pool(squeue=job, sinfo=sinfo, scontrol_hostnames="e1\ne2\n" if "e[1" in job else "e1\n")
        found = made.machine("n2")
        return found["id"], found["state"], found["job"]

    assert of("RUNNING|None|2026-11-25T17:34:48|e[1-2]") == ("7 since 2026-11-25T17:34:48", "allocated", "RUNNING")
    assert of("RUNNING|None|2026-11-25T17:34:48|e1", "e2|down*|Not responding | x\n") == ("", "down*", "RUNNING")
    assert of("PENDING|BeginTime|2026-11-25T17:35:14|")[0] == ""
    assert of("", "e2|idle|none")[2] == ""  # forgotten


def test_a_controller_that_is_away_is_noticed_before_commands_that_would_wait_for_it() -> None:
    made, told = pool(scontrol_ping=ClusterError("slurm: no word why"))
    with pytest.raises(OSError, match="no word why"):
        made._said()
    assert told.asked == ["scontrol ping"]
    there, _ = pool(scontrol_ping="", squeue="RUNNING|None|x|e[1-2]\n", sinfo="e1|idle|none\ne2|down*|a | b\n")
    assert there._said() == {"Job/7": ("RUNNING", "None"), "Node/e1": ("idle", "none"), "Node/e2": ("down*", "a | b")}


def test_its_time_outs_are_those_of_the_site() -> None:
    made, _ = pool(scontrol_config=CONFIG, scontrol_node=NODE)
    assert made.timeouts() == {"SlurmdTimeout": 300.0, "KillWait": 30.0, "UnkillableStepTimeout": 60.0}
    assert made.pulse("e2") == {"where": "e2", "at": "2026-11-25T17:34:26", "every_s": 300.0}


def test_whether_a_daemon_answers_is_seen_by_a_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        made, _ = pool(scontrol_config=CONFIG.replace("6818", str(port)), scontrol_node=NODE)
        assert made.answers("e2")
    assert not made.answers("e2")
    there, _ = pool(scontrol_config=CONFIG, scontrol_node=NODE.replace("127.0.0.1", "no.such.invalid"))
    with pytest.raises(ClusterError, match="e2: whether its slurmd answers cannot be told"):
        there.answers("e2")


def test_a_slurmd_with_a_port_of_its_own_is_asked_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as closed:
        usual, own = closed.getsockname()[1], server.getsockname()[1]
        closed.close()
        made, _ = pool(
            scontrol_config=CONFIG.replace("6818", str(usual)), scontrol_node=f"{NODE} Port={own} Version=22"
        )
        assert made.answers("e2")


@pytest.mark.parametrize(
    ("state", "now", "does"),
    [
        ("down", "allocated|none", "scontrol update nodename=e2 state=down reason=proving-ground-r1"),
        ("resume", "down*|proving-ground-r1", "scontrol update nodename=e2 state=resume"),
        ("resume", "draining|proving-ground-r1", "scontrol update nodename=e2 state=resume"),
        ("resume", "idle|none", ""),  # it came back by itself
        ("resume", "drained|disk broken", ""),  # somebody has closed it meanwhile
        ("resume", "drained|proving-ground-r12", ""),  # another run has
    ],
)
def test_a_machine_is_marked(state: str, now: str, does: str) -> None:
    made, told = pool(sinfo=f"e2|{now}\n", scontrol_update="")
    made.mark("e2", state)
    assert [it for it in told.asked if "scontrol" in it] == ([does] if does else [])


def test_a_machine_that_somebody_has_closed_is_not_marked() -> None:
    made, told = pool(sinfo="e2|drained|disk broken\n")
    with pytest.raises(ClusterError, match="e2 is drained already, and not by this fault: disk broken"):
        made.mark("e2", "down")
    assert not [it for it in told.asked if "update" in it]


@pytest.mark.parametrize("does", ["mark", "resume"])
def test_a_machine_that_slurm_does_not_know_is_told_so(does: str) -> None:
    made, told = pool(squeue="RUNNING|None|x|e1\n", scontrol_hostnames="e1\n", sinfo="a word of warning\n")
    with pytest.raises(ClusterError, match="slurm: sinfo does not know e2"):
        made.machine("n2")
    with pytest.raises(ClusterError, match="slurm: sinfo does not know e2"):
        made.mark("e2", does)
    assert all("--all" in it for it in told.asked if it.startswith("sinfo")), "its partition may be hidden"


def test_what_is_no_answer_does_not_end_the_story() -> None:
    made, _ = pool(scontrol_ping="", squeue="RUNNING|None|x|e[1-2]\n", sinfo="slurm: a warning\ne1|idle|none\n")
    story = SlurmStory(made._said, {})
    story.look()
    assert [it["about"] for it in story.more()] == ["Controller", "Job/7", "Node/e1"]


def gone() -> str:
    """The signature of a harness of this host that is over."""
    return f"{socket.gethostname()}/{2**22 + 1}.1"


LEFT = "e1|drained|proving-ground-gone\ne2|draining|proving-ground-here\ne3|down*|Not responding\n"
OPENS = ["scontrol update nodename=e1 state=resume"]


def cleaned(jobs: str, of_all: str, machines: str, **answers: str | Exception) -> tuple[list[str], list[str]]:
    """What `clean` says, and what it does."""
    usual = {"sinfo": machines, "scancel": "", "scontrol_update": ""}
    made, told = pool("", **{**usual, "squeue_--me": jobs, "squeue_--all": of_all, **answers})
    lines = made.clean(dry_run=False)
    return list(lines), [it for it in told.asked if it.startswith(("scancel", "scontrol update")) and NOBODY not in it]


def test_clean_opens_what_a_run_that_is_gone_had_closed_and_nothing_else() -> None:
    lines, done = cleaned(f"8|proving-ground-here|{signature()}\n", "proving-ground-here\n", LEFT)
    assert [line.partition(":")[0] for line in lines] == [f"in use by {signature()}, let be", "left"]
    assert lines[-1] == "left: machine e1, drained by proving-ground-gone"
    assert done == OPENS


def test_clean_lets_machines_be_that_another_user_s_run_has_closed() -> None:
    machines = LEFT + "e4|drained|proving-ground-hers\n"
    _, done = cleaned(
        f"8|proving-ground-gone|{gone()}\n",
        "proving-ground-gone\nproving-ground-here\nbash\nproving-ground-hers\n",
        machines,
    )
    assert done == ["scancel --quiet 8", *OPENS], "a job that was just cancelled may be there for a while"


def test_clean_says_what_it_has_cancelled_to_whoever_may_not_open_machines() -> None:
    denied = SpecError("cluster slurm: Access/permission denied")
    lines, done = cleaned(f"8|proving-ground-gone|{gone()}\n", "", LEFT, scontrol_update=denied)
    assert lines == ["left: job 8, proving-ground-gone"]
    assert done == ["scancel --quiet 8"]


def test_how_long_it_stood_in_the_queue_and_which_jobs_it_had(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made, _ = pool("preempt=high", **{"sbatch_--job-name=proving-ground-r2-preferred": "10\n", "sbatch": "9;there\n"})
    monkeypatch.setattr(SlurmStory, "begin", lambda _: None)

    def hosts(*_: object) -> list[str]:
        time.sleep(0.05)
        return ["e1"]

    monkeypatch.setattr(made, "_hosts", hosts)
    monkeypatch.setattr(made, "_member", lambda name, *_: Member(name, "e1", "", (), ""))
    assert made.queued_s is None
    (member,) = made.allocate(ClusterRequest("r2", 1, 1, tmp_path), lambda _: b"", lambda _: None)
    assert member.name == "n1"
    made.preempt(on=True)
    assert 0.05 <= (made.queued_s or 0.0) < 5.0
    assert made._accounts.jobs == ["9", "10"]


CANCELS = "scancel --quiet --me --name=proving-ground-r1-preferred"


def test_the_job_that_is_preferred_ends_by_itself_soon() -> None:
    made, told = pool("preempt=high,time_min=600", sbatch="9\n")
    made.preempt(on=True)
    assert "--time=15 " in told.asked[0]
    assert told.asked[0].endswith("--wrap=sleep 900")


def test_a_job_that_is_preferred_is_cancelled_though_nobody_heard_its_number() -> None:
    made, told = pool("preempt=high", sbatch=ClusterError("slurm: no answer"), scancel="")
    with pytest.raises(ClusterError):
        made.preempt(on=True)
    made.release()
    assert told.asked[1:] == [CANCELS, "scancel --quiet 7"]
    made.release()
    assert len(told.asked) == 3


def test_the_run_s_own_job_is_cancelled_whatever_fails_and_the_other_is_tried_again() -> None:
    answers: dict[str, str | Exception] = {"sbatch": "9\n", "scancel_--me": ClusterError("slurm: busy"), "scancel": ""}
    made, told = pool("preempt=high", **answers)
    made.preempt(on=True)
    for _ in range(2):
        with pytest.raises(ClusterError, match="busy"):
            made.release()
    assert told.asked[1:] == [CANCELS, "scancel --quiet 7", CANCELS]


def story(*answers: dict[str, tuple[str, str]] | OSError) -> SlurmStory:
    left = list(answers)

    def ask() -> dict[str, tuple[str, str]]:
        if isinstance(found := left.pop(0), OSError):
            raise found
        return found

    made = SlurmStory(ask, {"Node/e2": "n2"})
    for _ in answers:
        made.look()
    return made


UP, DOWN = {"Node/e2": ("allocated", "none")}, {"Node/e2": ("down*", "Not responding")}


def test_a_change_lies_between_two_answers() -> None:
    made = story(UP, UP, DOWN)
    found = list(made.more())
    assert [(it["about"], it["node"], it["reason"]) for it in found] == [
        ("Controller", "", "answers"), ("Node/e2", "n2", "allocated"), ("Node/e2", "n2", "down*"),
    ]  # fmt: skip
    assert found[-1]["message"] == "Not responding"
    assert all(0 <= it["error_s"] < 1 for it in found)
    assert list(made.more()) == []


def test_no_answer_is_told_of_the_controller_and_of_nothing_else() -> None:
    found = list(story(UP, OSError("connect failure"), UP).more())
    assert [(it["about"], it["reason"]) for it in found[2:]] == [
        ("Controller", "does not answer"), ("Controller", "answers"),
    ]  # fmt: skip


def test_it_is_asked_again_and_again_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.clusters.remote.slurm_story.LOOK_S", 0.01)
    asked: list[int] = []

    def ask() -> dict[str, tuple[str, str]]:
        asked.append(1)
        return UP

    made = SlurmStory(ask, {})
    made.begin()
    while len(asked) < 3:
        pass
    made.end()
    made.end()
    assert made._thread is None
