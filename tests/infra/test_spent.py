"""What a stack has cost: what is asked of Azure, what its answers mean (against a server on loopback), and `reap`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from proving_ground.infra import __main__ as cli
from proving_ground.infra import config, naming, operate, outputs, spent
from proving_ground.infra.reading import ConfigError
from tests.infra.serving import serving
from tests.infra.test_life import NOW, Double

GROUPS = naming.resource_groups("dev")
COLUMNS = [{"name": "totalCost", "type": "Number"}, {"name": "Currency", "type": "String"}]


class Management(BaseHTTPRequestHandler):
    """Answers like Azure's cost management; remembers what it was asked."""

    asked: list[dict[str, Any]]
    rows: list[list[object]]
    status: int

    def do_POST(self) -> None:
        """One question."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append({"path": self.path, "token": self.headers["Authorization"], **body})
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(json.dumps({"properties": {"columns": COLUMNS, "rows": self.rows}}).encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the parent's name
        """Say nothing."""


@pytest.fixture
def azure(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Management]]:
    """The service, in the place of the real one."""
    kind = type("Own", (Management,), {"asked": [], "rows": [[12.5, "USD"]], "status": 200})
    with serving(kind) as address:
        monkeypatch.setattr(spent, "API", address)
        yield kind


def test_both_resource_groups_of_the_month_are_asked_for(azure: type[Management]) -> None:
    assert GROUPS == ("pg-dev-rg", "pg-dev-nodes-rg")
    assert spent.month_to_date("sub", GROUPS, "secret") == 12.5
    (asked,) = azure.asked
    assert asked["path"].startswith("/subscriptions/sub/providers/Microsoft.CostManagement/query?api-version=20")
    assert (asked["token"], asked["timeframe"]) == ("Bearer secret", "MonthToDate")
    assert asked["dataset"]["filter"]["dimensions"]["values"] == list(GROUPS)


@pytest.mark.parametrize(
    ("rows", "status", "came"),
    [
        ([], 200, 0.0),
        ([[1.5, "USD"], [2.0, "USD"]], 200, 3.5),
        ([[1.5, "EUR"]], 200, "billed in EUR, and the budget is in USD"),
        ([], 403, "refuses: 403"),
    ],
)
def test_what_its_answers_mean(
    azure: type[Management], rows: list[list[object]], status: int, came: float | str
) -> None:
    azure.rows, azure.status = rows, status
    if isinstance(came, float):
        assert spent.month_to_date("sub", GROUPS, "t") == came
    else:
        with pytest.raises(ConfigError, match=came):
            spent.month_to_date("sub", GROUPS, "t")


def test_without_a_network_it_says_so() -> None:
    with pytest.raises(ConfigError, match="spent: Azure's cost management cannot be read"):
        spent.month_to_date("sub", GROUPS, "t", "http://127.0.0.1:9")


@pytest.mark.parametrize(("paid", "goes"), [(10.0, False), (10_000.0, True)])
def test_a_stack_past_its_budget_goes(
    azure: type[Management],
    paid: float,
    goes: bool,  # noqa: FBT001 - a table's column
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    azure.rows = [[paid, "USD"]]
    double = Double()
    where = outputs.AzureOutputs("sub", "pg-dev-rg", "registry", "blobs", "checkpoints")
    monkeypatch.setattr(operate, "open_stack", lambda _: double)
    monkeypatch.setattr(operate, "now", lambda: NOW)
    monkeypatch.setattr(operate, "_token", lambda: "t")
    monkeypatch.setattr(outputs, "load", lambda _: type("Of", (), {"azure": where}))
    assert cli.main(["reap", "dev"]) == 0
    assert (double.tried == [{"destroy": "yes"}]) == goes


def test_where_azure_does_not_say_only_the_age_counts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_answer(_: str) -> None:
        raise ConfigError("stack dev: no outputs")

    monkeypatch.setattr(outputs, "load", no_answer)
    assert operate._spent(config.load("dev", environ={})) is None
    assert "only its age is looked at" in capsys.readouterr().err
    assert operate._spent(config.load("local", environ={})) is None
