"""What `pulumi up` runs: read the stack's configuration once, declare the environment, export the contract."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # Pulumi runs `program.py` in this file's own folder

import pulumi

from infra import config, sizes
from infra.reading import ConfigError
from infra.stack import Secrets, build

PROJECT = "proving-ground"


def main() -> None:
    """Declare the stack that Pulumi has selected."""
    stack, given = pulumi.get_stack(), pulumi.Config(PROJECT)
    if given.get("environment") is not None:
        raise pulumi.RunError(f"environment is set by `pulumi config`; it is read from Pulumi.{stack}.yaml only")
    try:
        environment = config.load(stack)
    except ConfigError as error:
        raise pulumi.RunError(f"Pulumi.{stack}.yaml: {error}") from None
    password = given.get_secret("grafana_password")
    if password is None:
        how = f"pulumi config set --secret {PROJECT}:grafana_password --stack {stack}"
        raise pulumi.RunError(f"grafana_password is not set; set it: {how}")
    secrets = Secrets(grafana_password=password, webhook=given.get_secret("webhook"))
    for name, value in build(environment, secrets, _sizes(environment)).items():
        pulumi.export(name, value)


def _sizes(environment: config.Environment) -> dict[str, str]:
    """Of the pools; those that exist keep theirs, whoever runs `up` and from where."""
    if environment.azure is None:
        return {}
    name = f"{pulumi.get_organization()}/{pulumi.get_project()}/{pulumi.get_stack()}"
    answer = pulumi.runtime.invoke(sizes.READ_STATE, {"stackName": name}).value
    try:
        return sizes.chosen(environment.pools, os.environ, sizes.of_engine(answer or {}))
    except ConfigError as error:
        raise pulumi.RunError(str(error)) from None


if __name__ == "__main__":
    main()
