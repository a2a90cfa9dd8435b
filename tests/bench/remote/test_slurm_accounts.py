"""What is asked of sacct, how it is read, and that no run waits for it or fails by it."""

from __future__ import annotations

from pathlib import Path

import pytest

from proving_ground.bench.clusters.remote import slurm_accounts
from proving_ground.bench.clusters.remote.slurm_accounts import Accounts

NAME = "proving-ground-r1"
TIME = "2026-11-25T17:"
REQUEUED = (
    f"7|{NAME}|REQUEUED|0:0|1795628041|1795628041|1795628042"
    "|1795628102|60|3|192|billing=192,cpu=192,gres/gpu=24,node=3|e[1-3]"
)
CANCELLED = (
    f"7|{NAME}|CANCELLED by 0|0:0|1795628102|1795628110|1795628112"
    "|1795628172|60|3|192|billing=192,cpu=192,node=3|e[1-3]"
)
RUNNING = CANCELLED.replace("1795628172", "Unknown").replace("CANCELLED by 0", "RUNNING")
OF_BEFORE = REQUEUED.replace(NAME, "somebody's")
"""A job of another's that had the number before."""


@pytest.fixture
def sacct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in sacct's place: it says what is in `said`, ends with what is in `status`, and notes what is asked."""
    program = tmp_path / "sacct"
    program.write_text(
        f'#!/bin/sh\necho "$SLURM_TIME_FORMAT $*" >>{tmp_path}/asked\n. {tmp_path}/before\ncat {tmp_path}/said\n'
        f'cat {tmp_path}/complaint >&2\nexit "$(cat {tmp_path}/status)"\n'
    )
    program.chmod(0o755)
    for name, text in {"before": "", "said": "", "complaint": "", "status": "0"}.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(slurm_accounts, "LOOK_S", 0.02)
    return tmp_path


def told(*jobs: str) -> tuple[list[dict[str, object]], str]:
    found = Accounts(list(jobs or ("7",))).told(NAME)
    return found["begins"], found["why"]


def test_each_begin_of_a_job_that_was_requeued_is_told(sacct: Path) -> None:
    (sacct / "said").write_text(f"{OF_BEFORE}\n{REQUEUED}\n{CANCELLED}\na word of warning\n")
    (first, second), why = told()
    assert why == ""
    assert first == {
        "job": "7", "name": NAME, "state": "REQUEUED", "exit": "0:0", "submit": f"{TIME}34:01+00:00",
        "eligible": f"{TIME}34:01+00:00", "start": f"{TIME}34:02+00:00", "end": f"{TIME}35:02+00:00",
        "elapsed_s": 60, "nodes": 3, "cpus": 192, "gpus": 24, "hosts": "e[1-3]",
        "tres": "billing=192,cpu=192,gres/gpu=24,node=3",
    }  # fmt: skip
    assert (second["state"], second["gpus"]) == ("CANCELLED by 0", 0)
    (asked,) = (sacct / "asked").read_text().splitlines()
    assert asked.startswith("%s --duplicates -X --parsable2 --noheader --jobs=7 --format=JobID,")


def test_it_is_asked_until_all_jobs_and_elements_have_ended_there(sacct: Path) -> None:
    (sacct / "said").write_text(f"{CANCELLED}\n".replace("7|", "7_1|", 1))
    (sacct / "before").write_text(
        f"[ $(wc -l <{sacct}/asked) -lt 3 ] || echo '{CANCELLED}' | sed s/^7/9/\n", encoding="utf-8"
    )
    found, why = told("7", "9")
    assert (sorted(str(it["job"]) for it in found), why) == (["7_1", "9"], "")
    assert len((sacct / "asked").read_text().splitlines()) == 3


@pytest.mark.parametrize("said", [RUNNING, "", OF_BEFORE])
def test_what_does_not_end_there_in_time_is_told_as_it_is(
    sacct: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setattr(slurm_accounts, "WAIT_S", 0.5)
    (sacct / "said").write_text(said)
    found, why = told()
    assert [it["end"] for it in found] == [""] * (said == RUNNING)
    assert why == slurm_accounts.NOT_OVER


def test_a_site_that_counts_nothing_says_so_and_is_not_asked_again(sacct: Path) -> None:
    (sacct / "complaint").write_text("Slurm accounting storage is disabled\n")
    (sacct / "status").write_text("1")
    assert told() == ([], "Slurm accounting storage is disabled")
    assert len((sacct / "asked").read_text().splitlines()) == 1


def test_a_site_that_does_not_answer_keeps_no_run(sacct: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_accounts, "WAIT_S", 0.5)
    (sacct / "before").write_text("exec sleep 60\n")
    assert told() == ([], slurm_accounts.NO_ANSWER), "it was waited for"


def test_without_sacct_that_is_what_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert told() == ([], "there is no sacct on this machine")


def test_it_is_told_once_and_of_nothing_where_no_job_was_had() -> None:
    accounts = Accounts()
    assert accounts.told(NAME) == {}
    accounts.jobs.append("7")
    assert accounts.told(NAME)
    assert accounts.told(NAME) == {}
