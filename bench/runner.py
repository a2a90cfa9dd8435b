"""What all commands share that do runs: where, which cases, what is seen meanwhile, recording and having it judged.

Called by the commands of `bench` and of `chaos`; no command line of its own. Errors are exceptions, one line each.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import argcomplete

from proving_ground.bench import rundir, shell
from proving_ground.bench.child import environment, ours
from proving_ground.bench.clusters import CLUSTERS, POOLS, elsewhere
from proving_ground.bench.clusters.local.userns import enter_user_namespace
from proving_ground.bench.plan import Plan
from proving_ground.bench.progress import Bar, Quiet, Watch
from proving_ground.bench.protocols import Cluster, ClusterError
from proving_ground.bench.run import Parts, TrialFailed, TrialMistaken
from proving_ground.bench.run import run as run_suite
from proving_ground.bench.rundir import RunDir, RunDirError
from proving_ground.bench.spec import Case, SpecError, Suite
from proving_ground.training.typed import unknown

MISTAKES = (SpecError, RunDirError, TrialMistaken)
"""What the caller did wrong: exit status 2."""
FAILURES = (TrialFailed, ClusterError, OSError)
"""What went wrong: exit status 1."""


def of_cluster(command: argparse.ArgumentParser) -> None:
    """Where to run."""
    known = dict.fromkeys(["auto", *CLUSTERS, *(f"{name}:" for name in POOLS)], "")
    option = command.add_argument(
        "--cluster", default="auto", metavar="WHERE",
        help="auto (the best here), local, fake, or other machines: ssh:HOST,HOST,volume=/DIR, slurm:…, kubernetes:…, "
        "ray:…; "
        "`doctor --cluster ssh:` tells its options (default: auto)",
    )  # fmt: skip
    option.completer = argcomplete.ChoicesCompleter(known)  # type: ignore[attr-defined] # argcomplete's own attribute


def known_runs(prefix: str = "", parsed_args: argparse.Namespace | None = None, **_: object) -> list[str]:
    """For the shell's completion: ids of runs, suites that were run, and `latest`."""
    del prefix
    known = rundir.all_runs(getattr(parsed_args, "runs", shell.RUNS))
    return ["latest", *dict.fromkeys(run.suite for run in known), *(run.run_id for run in known)]


def named(cases: tuple[Case, ...], names: list[str] | None) -> tuple[Case, ...]:
    """The cases that --case names; all of them without it.

    Raises:
        SpecError: there is none of that name.
    """
    if not names:
        return cases
    known = [case.name for case in cases]
    for name in names:
        if name not in known:
            raise SpecError(f"--case: {unknown('case', name, known)}")
    return tuple(case for case in cases if case.name in names)


def watch(options: Namespace) -> Watch:
    """What is seen of the run meanwhile."""
    return Quiet() if options.quiet else Bar()


def record(
    suite: Suite,
    cluster: Cluster,
    runs: Path,
    parts: Parts,
    resume: RunDir | None = None,
    made: Plan | None = None,
) -> RunDir:
    """Run a suite, by the plan that was `made` of it where there is one; the run's directory.

    Raises:
        OSError: says which folder could not be written.
    """
    try:
        return run_suite(suite, cluster, runs, parts, resume, made)
    except OSError as error:
        raise OSError(f"{runs}: {error.strerror or error}") from error


def report(store: RunDir, options: Namespace) -> int:
    """Have the report made; its exit status is the verdict."""
    words = [str(store.path), *(f"--{it}" for it in ("quiet", "json") if getattr(options, it))]
    return subprocess.run(ours("reports", *words), env=environment(), check=False).returncode


def with_nodes(main: Callable[[list[str] | None], int], words: list[str] | None) -> int:
    """Do it with nodes for ordinary users too, which the kernel wants made before there are threads."""
    if not elsewhere(sys.argv if words is None else words):
        enter_user_namespace()
    return main(words)
