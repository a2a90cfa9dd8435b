"""Runs a Pulumi program as the Python language host does: settings from the command line, the program by its path.

For `tests.infra.engine`, as a process of its own, where the CLI's own script is not at hand.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import runpy
import sys
from functools import partial

import pulumi
from pulumi.runtime import Settings, configure, run_in_stack, set_all_config


def start(program: str) -> None:
    """Run a file as the CLI does."""
    runpy.run_path(program, run_name="__main__")


def main() -> int:
    """Run it; 1 with the error told to the engine where the program refuses."""
    parser = argparse.ArgumentParser()
    for name in ("monitor", "engine", "project", "stack", "organization", "pwd", "dry_run", "parallel"):
        parser.add_argument(f"--{name}")
    parser.add_argument("program")
    given = parser.parse_args()
    config, secret = (json.loads(os.environ[name]) for name in ("PULUMI_CONFIG", "PULUMI_CONFIG_SECRET_KEYS"))
    set_all_config(config, secret)
    configure(
        Settings(
            monitor=given.monitor, engine=given.engine, project=given.project, stack=given.stack,
            parallel=int(given.parallel), dry_run=given.dry_run == "true", organization=given.organization,
        )
    )  # fmt: skip
    os.chdir(given.pwd)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(run_in_stack(partial(start, given.program)))
    except pulumi.RunError as error:
        pulumi.log.error(str(error))
        return 1
    finally:
        loop.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
