"""What `pulumi up` runs: read the stack's configuration once, declare the environment, export the contract."""

from __future__ import annotations

import base64
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # Pulumi runs `program.py` in this file's own folder

import pulumi

from proving_ground.infra import config, sizes
from proving_ground.infra.passwords import KEPT, NO_WEBHOOK, VARIABLES
from proving_ground.infra.reading import ConfigError
from proving_ground.infra.stack import Secrets, build

PROJECT = "proving-ground"
READS, BETWEEN_READS_S = 10, 0.2


def main() -> None:
    """Declare the stack that Pulumi has selected."""
    stack, given = pulumi.get_stack(), pulumi.Config(PROJECT)
    if given.get("environment") is not None:
        raise pulumi.RunError(f"environment is set by `pulumi config`; it is read from Pulumi.{stack}.yaml only")
    try:
        environment = config.load(stack)
    except ConfigError as error:
        raise pulumi.RunError(f"Pulumi.{stack}.yaml: {error}") from None
    state = _state()
    password = _secret("grafana_password", state)
    if not password:
        how = f"pulumi config set --secret {PROJECT}:grafana_password --stack {stack}"
        raise pulumi.RunError(f"grafana_password is not set; set it: {how}")
    webhook = _secret("webhook", state)
    known = webhook if webhook and webhook != NO_WEBHOOK else None
    secrets = Secrets(pulumi.Output.secret(password), pulumi.Output.secret(known) if known else None)
    for name, value in build(environment, secrets, _sizes(environment, state)).items():
        pulumi.export(name, value)


def _state() -> dict[str, Any]:
    """What the last `up` left, as the engine has it.

    It reads the file which it writes at the same time: seen with 3.260 and states in a folder, "failed to load
    checkpoint: EOF". A moment later it is whole.
    """
    name = f"{pulumi.get_organization()}/{pulumi.get_project()}/{pulumi.get_stack()}"
    for left in reversed(range(READS)):
        try:
            return pulumi.runtime.invoke(sizes.READ_STATE, {"stackName": name}).value or {}
        except Exception as error:  # noqa: BLE001 - what the engine answers has no type of its own
            if not left:
                raise pulumi.RunError(f"the stack's state cannot be read: {error}") from None
            time.sleep(BETWEEN_READS_S)
    return {}


def _secret(name: str, state: Mapping[str, Any]) -> str | None:
    """From the environment, else from `pulumi config`, else the one that the stack has; None where there is none."""
    said = os.environ.get(VARIABLES[name]) or pulumi.runtime.get_config(f"{PROJECT}:{name}")
    return said or of_state(state, *KEPT[name])


def of_state(state: Mapping[str, Any], label: str, key: str) -> str | None:
    """A value of a Secret that the stack's state holds."""
    for urn, item in state.get("outputs", {}).items():
        if urn.endswith(f"::{label}"):
            found = (item["outputs"].get("data") or {}).get(key)
            return base64.b64decode(found).decode() if found else (item["outputs"].get("stringData") or {}).get(key)
    return None


def _sizes(environment: config.Environment, state: Mapping[str, Any]) -> dict[str, str]:
    """Of the pools; those that exist keep theirs, whoever runs `up` and from where."""
    try:
        return sizes.chosen(environment.pools, os.environ, sizes.of_engine(state))
    except ConfigError as error:
        raise pulumi.RunError(str(error)) from None


if __name__ == "__main__":
    main()
