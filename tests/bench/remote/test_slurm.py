"""What Slurm is asked, and how what it says is read. `tests/engines/test_slurm_faults.py` has a real one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from proving_ground.bench.clusters.options import read_options
from proving_ground.bench.clusters.remote.pool import Member, signature
from proving_ground.bench.clusters.remote.slurm import NOBODY, SlurmOptions, SlurmPool
from proving_ground.bench.clusters.remote.slurm_fate import NOTICED, ended
from proving_ground.bench.clusters.remote.slurm_story import SlurmStory
from proving_ground.bench.protocols import ClusterError, ClusterRequest
from proving_ground.bench.spec import SpecError

CONFIG = """Configuration data as of 2026-11-25T17:31:27
KillWait                = 30 sec
SlurmdPort              = 6818
SlurmdTimeout           = 300 sec
UnkillableStepTimeout   = 60 sec
VSizeFactor             = 0 percent
"""
BOTH = "RUNNING|None|x|e[1-2]\n"
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


@pytest.mark.parametrize(
    ("reason", "never"),
    [
        ("AssocGrpCPUMinutesLimit", True), ("AssocMaxCpuMinutesPerJobLimit", True), ("QOSGrpCPUMinutesLimit", True),
        ("InvalidAccount", True), ("AssocGrpCPURunMinutesLimit", False), ("Resources", False), ("None", False),
    ],
)  # fmt: skip
def test_what_no_time_mends_is_not_waited_for(reason: str, *, never: bool) -> None:
    """The last: minutes that are held by what runs just now."""
    made, _ = pool()
    answers = iter([f"PENDING|{reason}|x|\n", BOTH, "e1\ne2\n"])
    made._slurm = lambda *_, **__: next(answers)  # type: ignore[method-assign]
    with pytest.raises(SpecError, match=f"never run: {reason}; another account=") if never else nullcontext():
        assert made._hosts(2, lambda _why: None) == ["e1", "e2"]


def test_a_node_is_what_the_job_has_since_it_began() -> None:
    def of(job: str, sinfo: str = "e2|allocated|none") -> tuple[str, str, str]:
        made, _ = pool(squeue=job, sinfo=sinfo, scontrol_hostnames="e1\ne2\n" if "e[1" in job else "e1\n")
        found = made.machine("n2")
        return found["id"], found["state"], found["job"]

    assert of("RUNNING|None|2026-11-25T17:34:48|e[1-2]") == ("7 since 2026-11-25T17:34:48", "allocated", "RUNNING")
    assert of("RUNNING|None|2026-11-25T17:34:48|e1", "e2|down*|Not responding | x\n") == ("", "down*", "RUNNING")
    assert of("PENDING|BeginTime|2026-11-25T17:35:14|")[0] == ""
    assert of("", "e2|idle|none")[2] == ""  # forgotten


def shown(state: str, **more: str) -> dict[str, str]:
    return {"JobState": state, "Reason": "None", "ExitCode": "0:0", "TimeLimit": "00:02:00", **more}


@pytest.mark.parametrize(
    ("known", "who", "says"),
    [
        (shown("CANCELLED"), "CANCELLED by 1000", "job 7 was cancelled (CANCELLED by 1000)"),
        (shown("CANCELLED"), "", "job 7 was cancelled (CANCELLED)"),
        (shown("TIMEOUT", Reason="TimeLimit"), "",
         "job 7 reached its time limit of 2 min (TIMEOUT): time_min= allows for more"),
        (shown("TIMEOUT", TimeLimit="1-00:01:30"), "", "job 7 reached its time limit of 1441.5 min (TIMEOUT)"),
        (shown("FAILED", ExitCode="75:0", Reason="NonZeroExitCode"), "",
         "job 7 left before its time limit of 2 min (FAILED, exit status 75): time_min= allows for more"),
        (shown("FAILED", ExitCode="3:0", TimeLimit="UNLIMITED"), "", "job 7 has failed (FAILED, exit status 3)"),
        (shown("NODE_FAIL", Reason="NodeDown"), "",
         "job 7 lost a machine that it cannot do without (NODE_FAIL, NodeDown)"),
        (shown("OUT_OF_MEMORY"), "", "job 7 ran out of memory (OUT_OF_MEMORY)"),
        (shown("PREEMPTED"), "", "job 7 had to give way to another (PREEMPTED)"),
        (shown("COMPLETED"), "", "job 7 is over (COMPLETED)"),
        (shown(""), "", "job 7 is not known to Slurm any more"),
    ],
)  # fmt: skip
def test_how_a_job_has_ended_is_told_in_slurm_s_words(known: dict[str, str], who: str, says: str) -> None:
    assert ended("7", known, 2, who) == says


JOB = "JobId=7 JobState={} Reason=None ExitCode=0:15 RunTime=00:01:10 TimeLimit={} Comment=x"
ACCOUNTS = CONFIG + "AccountingStorageType   = accounting_storage/slurmdbd\n"


@pytest.mark.parametrize(
    ("config", "by", "says"),
    [
        (ACCOUNTS, "CANCELLED by 1000\n", "job 7 was cancelled (CANCELLED by 1000)"),
        (ACCOUNTS, ClusterError("slurm: slurmdbd is away"), "job 7 was cancelled (CANCELLED)"),
        (CONFIG, ClusterError("asked though there are no accounts"), "job 7 was cancelled (CANCELLED)"),
    ],
)
def test_who_has_cancelled_a_job_is_asked_where_there_are_accounts(config: str, by: str | Exception, says: str) -> None:
    made, told = pool(
        "", scontrol_ping="", squeue="CANCELLED|None|x|\n", sinfo="", scontrol_config=config, sacct=by,
        scontrol_job=JOB.format("CANCELLED", "00:02:00"),
    )  # fmt: skip
    assert made.over() == ""
    for _ in range(2):
        made._said()
    assert made.over() == says
    assert len([it for it in told.asked if "show job" in it]) == 1, "once"


def test_a_job_that_slurm_has_forgotten_is_over() -> None:
    gone = ClusterError("slurm: slurm_load_jobs error: Invalid job id specified")
    made, _ = pool(scontrol_ping="", squeue=gone, sinfo="", scontrol_job=gone)
    made._said()
    assert made.over() == "job 7 is not known to Slurm any more"


@pytest.mark.parametrize(
    ("job", "waits", "lost"),
    [
        ("RUNNING|None|x|e[1-2]", "", set()),
        ("RUNNING|None|x|e1", "", {"n2"}),
        ("COMPLETING|None|x|e1", "", set()),
        ("PENDING|BeginTime|x|", "job 7 is pending: BeginTime", set()),
        ("SUSPENDED|None|x|e[1-2]", "job 7 is suspended: None", set()),
    ],
)
def test_nodes_wait_with_the_job_and_are_lost_where_it_goes_on_without_them(
    job: str, waits: str, lost: set[str]
) -> None:
    hosts = "e1\ne2\n" if "e[1" in job else "e1\n"
    made, told = pool(scontrol_ping="", squeue=job, sinfo="", scontrol_hostnames=hosts)
    made._said()
    asked = len(told.asked)
    assert made.waits() == (dict.fromkeys(("n1", "n2"), waits) if waits else {})
    assert (made.lost(), made.over()) == (lost, "")
    assert len(told.asked) == asked, "they are what is known by now"


def test_a_time_limit_comes_as_near_as_whole_minutes_and_the_notice_let_it_and_is_set_again() -> None:
    made, told = pool("notice_s=60,requeue=true", scontrol_update="", scontrol_job=JOB.format("RUNNING", "02:00:00"))
    assert made.limit(on=True) == {"before_min": 120.0, "limit_min": 120.0, "left_s": 7130.0}
    assert told.asked[1] == "scontrol update jobid=7 timelimit=3", "70 s are over, and 60 s are for the notice"
    made.limit(on=False)
    assert told.asked[-2] == "scontrol update jobid=7 timelimit=120"
    near, said = pool("notice_s=60,requeue=true", scontrol_job=JOB.format("RUNNING", "00:03:00"))
    with pytest.raises(ClusterError, match="job 7 is near its time limit as it is: 00:03:00"):
        near.limit(on=True)
    assert not [it for it in said.asked if "update" in it]


def test_a_notice_that_would_come_as_the_job_begins_is_refused() -> None:
    with pytest.raises(SpecError, match="cluster slurm: notice_s = 60: Slurm may give notice up to 60 s earlier"):
        pool("notice_s=60,time_min=2")
    pool("notice_s=59,time_min=2")


def test_a_script_without_a_notice_is_what_it_was() -> None:
    assert "signal" not in pool("requeue=true")[0]._script("name", 2, "")
    assert "trap" not in pool("requeue=true")[0]._script("name", 2, "")


SRUN = """#!/bin/sh
cat >>"$SAID/input"
touch "$SAID/runs"
while [ ! -e "$SAID/left" ]; do sleep 0.05; done
exit ${CODE:-0}
"""
SAYS = '#!/bin/sh\necho "${0##*/} $*" >>"$SAID/said"\n'


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., subprocess.Popen[bytes]]:
    """Runs a batch script with programs that stand in for Slurm's."""
    for name, text in {"srun": SRUN, "scancel": SAYS, "scontrol": SAYS + "exit ${CODE:-0}\n"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def begin(words: str, **env: str) -> subprocess.Popen[bytes]:
        text = pool(words)[0]._script("name", 2, "QUdFTlQ=\n")
        own = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SAID": str(tmp_path), "SLURM_JOB_ID": "7"}
        process = subprocess.Popen(["sh", "-c", text], env={**os.environ, **own, **env}, start_new_session=True)
        while not (tmp_path / "runs").exists():
            time.sleep(0.01)
        return process

    return begin


def said(tmp_path: Path, lines: int) -> list[str]:
    """What Slurm's commands were told, once there is so much of it."""
    file = tmp_path / "said"
    while not (file.exists() and len(found := file.read_text().splitlines()) >= lines):
        time.sleep(0.01)
    return found


def test_a_script_with_a_notice_ends_as_its_step_does(
    script: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    process = script("notice_s=30,requeue=true", CODE="3")
    (tmp_path / "left").touch()
    assert process.wait() == 3
    assert (tmp_path / "input").read_text() == "AGENT"
    assert not (tmp_path / "said").exists()


def test_a_script_that_has_its_notice_passes_it_on_and_ends_with_a_status_that_says_so(
    script: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    process = script("notice_s=30")
    process.send_signal(signal.SIGUSR1)
    assert said(tmp_path, 1) == ["scancel --quiet --signal=TERM 7"]
    assert process.poll() is None, "the step uses its time"
    (tmp_path / "left").touch()
    assert process.wait() == NOTICED
    assert len(said(tmp_path, 1)) == 1


def test_a_script_puts_its_job_into_the_queue_when_its_step_has_left(
    script: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    process = script("notice_s=600,requeue=true")
    process.send_signal(signal.SIGUSR1)
    said(tmp_path, 1)
    (tmp_path / "left").touch()
    assert said(tmp_path, 2)[1:] == ["scontrol requeue 7"]
    assert process.poll() is None, "it waits for its end: a job that is over could not be begun again"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_a_script_puts_its_job_into_the_queue_though_its_step_does_not_leave(
    script: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    process = script("notice_s=11,requeue=true")
    process.send_signal(signal.SIGUSR1)
    assert said(tmp_path, 2) == ["scancel --quiet --signal=TERM 7", "scontrol requeue 7"]
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_a_script_whose_job_may_not_be_begun_again_ends_with_a_status_that_says_so(
    script: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    process = script("notice_s=600,requeue=true", CODE="1")
    process.send_signal(signal.SIGUSR1)
    said(tmp_path, 1)
    (tmp_path / "left").touch()
    assert process.wait() == NOTICED
    subprocess.run(["pkill", "-KILL", "-s", str(process.pid)], check=False)  # what was to see to it in time


def test_a_controller_that_is_away_is_noticed_before_commands_that_would_wait_for_it() -> None:
    made, told = pool(scontrol_ping=ClusterError("slurm: no word why"))
    with pytest.raises(OSError, match="no word why"):
        made._said()
    assert told.asked == ["scontrol ping"]
    there, _ = pool(
        scontrol_ping="", squeue=BOTH, scontrol_hostnames="e1\ne2\n", sinfo="e1|idle|none\ne2|down*|a | b\n"
    )
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
    made, _ = pool(
        scontrol_ping="", squeue=BOTH, scontrol_hostnames="e1\ne2\n", sinfo="slurm: a warning\ne1|idle|none\n"
    )
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
    monkeypatch.setattr("proving_ground.bench.clusters.remote.slurm_story.LOOK_S", 0.01)
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
