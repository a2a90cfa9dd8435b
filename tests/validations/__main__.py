"""`python -m tests.validations NAME …` (`nox -s validate -- NAME …`): long measurements that accumulate and resume."""

from __future__ import annotations

import importlib
import signal
import sys

from proving_ground.bench.shell import interrupt

VALIDATIONS = {
    "scaling": "the default suite over many repeats, against its bars",
    "matrix": "link rate × model × bucket × compression against bounds and predictions",
    "aa": "comparisons of a configuration with itself, and with one that is 5 % slower",
    "attribution": "each cause of lost time planted for real, and found with its size",
    "restart": "time to recovery after a kill by a restart, twelve jobs a row",
    "recovery": "the same by live recovery: kills, partitions, a hang, the coordinator",
    "shootout": "every mechanism under one schedule: torchrun, a plain relaunch, restart, live, exact",
    "effective": "effective training time at one fault a minute, and a forecast from it for three",
    "checkpoints": "crash points of saving: ours, torch's ways, and mutants that must be caught",
    "same-training": "random schedules of kills, shrinking and regrowing: bitwise the same as undisturbed",
    "judgement": "all that the judgement rests on, part by part; what other code did begins anew",
    "trainers": "every defect of a trainer in every shape of job: none may be called recovered",
    "soak": "random faults, phases, targets and double faults, unattended; stops at the first wrong one",
    "simulation": "the membership logic on virtual machines: a million seeded runs, and mutants that must be found",
    "suites": "suites with mistakes in them: each accepted rightly or refused in a line, without a traceback",
    "inputs": "commands with mistakes in their words or their files: one line, a known status, no traceback",
    "alerts": "which alert comes for each fault, and how late, with the real Prometheus and Alertmanager",
    "healthy": "an hour under full load in which nothing breaks: no alarm, no eviction",
    "tampering": "recorded faults changed afterwards in sixty ways and sealed again: each must be named or unknown",
    "pulumi": "up, up, down and interruptions of stack `local`: real Pulumi CLI, real node",
    "connections": "faults on hosts by ssh while connections are cut at random: no record may be lost",
    "searches": "what early stopping saves over ten seeds, twenty killed searches, and what a search costs a trial",
    "clones": "the README's two commands in fresh clones, on an idle machine and with a core taken",
    "gpu": "the trainer beside a plain loop on one GPU, and faults there: of runs made where there is one",
    "tables": "write the tables of the documents again from what was measured",
    "pages": "write HTML pages of what was measured: an index, and one for each validation",
}
"""Name → what it does; the code is in the module of that name, function `main`."""

MISTAKES = ("SpecError", "RunDirError", "KeptError")


def main(argv: list[str]) -> int:
    """Run one validation; exit status 2 and one line for the caller's mistakes."""
    if not argv or argv[0] not in VALIDATIONS:
        print("usage: python -m tests.validations NAME …; NAME is one of", file=sys.stderr)
        for name, words in VALIDATIONS.items():
            print(f"  {name:<13} {words}", file=sys.stderr)
        return 2
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    try:
        return int(importlib.import_module(f"tests.validations.{argv[0].replace('-', '_')}").main(argv[1:]))
    except KeyboardInterrupt:
        print("interrupted; what was measured is kept: the same command goes on", file=sys.stderr)
        return 130
    except Exception as error:
        if type(error).__name__ not in MISTAKES:
            raise
        print(f"validations: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
