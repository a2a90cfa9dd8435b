"""Money: a monthly budget on the environment's resource groups, with a mail at each step, 125 % of it included."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pulumi
from pulumi_azure_native import consumption

if TYPE_CHECKING:
    from proving_ground.infra.azure.place import Place
    from proving_ground.infra.config import Budget as Settings


@dataclass(frozen=True)
class BudgetArgs:
    """`scope` is the subscription's id; `groups` are the resource groups whose costs count."""

    place: Place
    settings: Settings
    scope: pulumi.Input[str]
    groups: tuple[str, ...]


class Budget(pulumi.ComponentResource):
    """A mail when the real cost passes a step, and one when the forecast passes the budget.

    Azure takes a start that is the first of a month, not before the present one, and five notifications (REST reference
    of Microsoft.Consumption/budgets). So the start is that of the month in which the budget is made; it then stays.
    """

    def __init__(self, args: BudgetArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("proving-ground:azure:Budget", "budget", {}, opts)
        consumption.Budget(
            "monthly-budget",
            budget_name=args.place.name("budget"),
            scope=args.scope,
            filter=consumption.BudgetFilterArgs(dimensions=_booked_on(args.groups)),
            amount=float(args.settings.monthly_usd),
            category="Cost",
            time_grain="Monthly",
            time_period={"start_date": f"{this_month()}T00:00:00Z"},
            notifications=_notifications(args.settings),
            opts=pulumi.ResourceOptions(parent=self, ignore_changes=["time_period"]),
        )
        self.register_outputs({})


def this_month() -> dt.date:
    """Its first day."""
    return dt.datetime.now(dt.UTC).date().replace(day=1)


def _booked_on(groups: tuple[str, ...]) -> consumption.BudgetComparisonExpressionArgs:
    return consumption.BudgetComparisonExpressionArgs(name="ResourceGroupName", operator="In", values=list(groups))


def _notifications(settings: Settings) -> dict[str, consumption.NotificationArgs]:
    steps = {f"actual-{percent}": _mail(settings, percent, "Actual") for percent in settings.alerts_percent}
    return {**steps, "forecast-100": _mail(settings, 100, "Forecasted")}


def _mail(settings: Settings, percent: int, kind: str) -> consumption.NotificationArgs:
    return consumption.NotificationArgs(
        enabled=True,
        operator="GreaterThanOrEqualTo",
        threshold=float(percent),
        threshold_type=kind,
        contact_emails=list(settings.emails),
    )
