"""The audit log: what every resource did goes to one Log Analytics workspace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pulumi
from pulumi_azure_native import applicationinsights, monitor, operationalinsights

if TYPE_CHECKING:
    from collections.abc import Mapping

    from proving_ground.infra.azure.place import Place


@dataclass(frozen=True)
class LogsArgs:
    """`retention_days`: how long logs are kept."""

    place: Place
    retention_days: int


class Logs(pulumi.ComponentResource):
    """Output: `workspace_id`; `collect` adds sources, `insights` what Azure ML writes its telemetry to."""

    def __init__(self, args: LogsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("proving-ground:azure:Logs", "logs", {}, opts)
        self._place = args.place
        workspace = operationalinsights.Workspace(
            "log-workspace",
            workspace_name=args.place.name("logs"),
            resource_group_name=args.place.group,
            location=args.place.location,
            sku={"name": "PerGB2018"},
            retention_in_days=args.retention_days,
            tags=args.place.tags,
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.workspace_id = workspace.id
        self.register_outputs({})

    def insights(self) -> applicationinsights.Component:
        """Application Insights that keeps what it gets in the same workspace."""
        return applicationinsights.Component(
            "ml-insights",
            resource_name_=self._place.name("insights"),
            resource_group_name=self._place.group,
            location=self._place.location,
            application_type="web",
            kind="web",
            ingestion_mode="LogAnalytics",
            workspace_resource_id=self.workspace_id,
            tags=self._place.tags,
            opts=pulumi.ResourceOptions(parent=self),
        )

    def collect(self, sources: Mapping[str, pulumi.Input[str]]) -> None:
        """Send all logs of each resource (short name → resource id) to the workspace."""
        for name, resource in sources.items():
            monitor.DiagnosticSetting(
                f"{name}-diagnostics",
                name=self._place.name("diagnostics", name),
                resource_uri=resource,
                workspace_id=self.workspace_id,
                logs=[{"category_group": "allLogs", "enabled": True}],
                opts=pulumi.ResourceOptions(parent=self),
            )
