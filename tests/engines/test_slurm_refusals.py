"""A run that Slurm cannot give anything: munge is away, or the account has no hours."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines import accounting, needs, slurm, traces
from tests.engines.slurm import Cluster
from tests.engines.traces import ROOT
from tests.programs import program

pytestmark = [pytest.mark.engines, pytest.mark.timeout(400)]

SPENT = (
    "sacctmgr -i add account spent && sacctmgr -i add user root account=spent && "
    "sacctmgr -i modify account spent set GrpTRESMins=cpu=0"
)


def said(bed: Cluster, *words: str) -> tuple[int, str]:
    """(exit status, what it complains of) of a command of `bench`."""
    done = subprocess.run(
        program("bench", *words),
        cwd=ROOT,
        env=bed.env,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.minutes
@pytest.mark.parametrize("layout", ["", ",array=true"])
def test_an_account_without_hours_is_refused_at_once(volume: Path, tmp_path: Path, layout: str) -> None:
    needs.require(slurm.PROGRAMS | accounting.PROGRAMS)
    with slurm.slurm(2, volume, settings={"AccountingStorageEnforce": "limits"}, counts=True) as bed:
        bed.controller.run(["sh", "-c", SPENT])
        where = f"slurm:main,python={sys.executable},volume={volume},emulated=true,account=spent{layout}"
        known = "sacctmgr -nP show assoc account=spent user=root format=user"
        assert traces.until(lambda: "root" in bed.controller.run(["sh", "-c", known]).stdout)
        status, line = said(bed, "run", "--suite", "smoke", "--cluster", where, "--runs", str(tmp_path))
        last = line.splitlines()[-1]
        says = r"bench: cluster slurm: job \d+ would never run: AssocGrp\w*Minutes\w*; another account= or qos=, or .*"
        assert (status, bool(re.fullmatch(says, last))) == (2, True), line
        assert traces.until(lambda: not bed.run("squeue", "--noheader").strip())


def test_a_munged_that_is_away_is_one_line(volume: Path, tmp_path: Path) -> None:
    needs.require(slurm.PROGRAMS)
    with slurm.slurm(1, volume) as bed:
        bed.stop_munge()
        where = f"slurm:main,python={sys.executable},volume={volume},emulated=true"
        for words in (("run", "--suite", "smoke", "--runs", str(tmp_path)), ("clean",)):
            status, line = said(bed, *words, "--cluster", where)
            assert (status, line.count("\n"), str(bed.socket) in line) == (1, 1, True), line
            assert re.match(r"bench: slurm: .*[Mm]unge", line), line
        assert not list(tmp_path.iterdir())
