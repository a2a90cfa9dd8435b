"""What a stack has cost this month, as Azure's cost management says. Called by `pg infra reap`.

The machines of an AKS cluster are booked on a resource group of their own beside the stack's, so both are asked for.
Azure books usage some hours late: a stack may spend more than its budget before this can say so.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

from proving_ground.infra.reading import ConfigError

API = "https://management.azure.com"
VERSION = "2024-08-01"
CURRENCY = "USD"  # that of the budget in the configuration
TIMEOUT_S = 60


def month_to_date(subscription: str, groups: Sequence[str], token: str, api: str | None = None) -> float:
    """Dollars booked on these resource groups since the month began.

    Raises:
        ConfigError: no answer, a refusal, or another currency.
    """
    url = f"{api or API}/subscriptions/{subscription}/providers/Microsoft.CostManagement/query?api-version={VERSION}"
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(query(groups)).encode(), headers)  # noqa: S310 - see `api`
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310 - https, or a test's loopback
            return total(json.load(answer))
    except urllib.error.HTTPError as error:
        raise ConfigError(f"spent: Azure's cost management refuses: {error.code} {error.reason}") from None
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"spent: Azure's cost management cannot be read: {error}") from None


def query(groups: Sequence[str]) -> dict[str, Any]:
    """What is asked: the sum of the month's cost over some resource groups."""
    return {
        "type": "ActualCost",
        "timeframe": "MonthToDate",
        "dataset": {
            "granularity": "None",
            "aggregation": {"totalCost": {"name": "Cost", "function": "Sum"}},
            "filter": {"dimensions": {"name": "ResourceGroupName", "operator": "In", "values": list(groups)}},
        },
    }


def total(answer: dict[str, Any]) -> float:
    """The sum over the answer's rows; nothing was booked where there are none.

    Raises:
        ConfigError: billed in another currency than the budget is in.
    """
    found = answer["properties"]
    names = [str(column["name"]).lower() for column in found["columns"]]
    rows = [dict(zip(names, row, strict=True)) for row in found["rows"]]
    if others := sorted({str(row["currency"]) for row in rows} - {CURRENCY}):
        raise ConfigError(
            f"spent: billed in {', '.join(others)}, and the budget is in {CURRENCY}; say --spent yourself"
        )
    return float(sum(row.get("totalcost", row.get("cost", 0.0)) for row in rows))
