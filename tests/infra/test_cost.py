"""Estimates, and the refresh of prices (against a server on loopback)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlparse

import pytest

from proving_ground.infra import config, cost, skus
from proving_ground.infra.reading import ConfigError
from tests.infra.serving import serving

PRICES = cost.load()
A100 = "Standard_NC24ads_A100_v4"


def test_the_shipped_table_has_every_size_with_source_and_date() -> None:
    assert set(PRICES.skus) == set(skus.SKUS)
    assert PRICES.source
    assert PRICES.as_of


@pytest.mark.parametrize("stack", config.STACKS)
def test_an_estimate_lies_between_least_and_most(stack: str) -> None:
    made = cost.estimate(config.load(stack, environ={}), PRICES, 10)
    assert 0 <= made.least <= made.most
    assert (made.most == 0) == (stack == "local")


def test_an_estimate_by_hand() -> None:
    dev = cost.estimate(config.load("dev", environ={}), PRICES, 2)
    assert dev.least == pytest.approx(2 * 0.096)
    assert dev.most == pytest.approx(2 * (2 * 0.096 + 2 * 0.384 + 0.062699))


def test_an_unknown_spot_price_counts_as_on_demand_and_is_assumed() -> None:
    assert cost.Price(2.0).hourly(spot=True) == (2.0, True)
    assert cost.Price(2.0, 0.5).hourly(spot=True) == (0.5, False)


def test_an_unknown_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="Standard_X is not in the table; allowed: Standard_D2s_v5"):
        cost.price(PRICES, "Standard_X")


@pytest.mark.parametrize(
    ("text", "message"), [("{", "not JSON"), ('{"source": 1}', "missing"), (None, "cannot be read")]
)
def test_a_broken_table_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "prices.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        cost.load(file)


class Retail(BaseHTTPRequestHandler):
    """Answers like Azure's retail prices, for A100s only."""

    def do_GET(self) -> None:
        asked = parse_qs(urlparse(self.path).query)["$filter"][0]
        common = {"productName": "NCads A100 v4 Series", "skuName": "NC24ads A100 v4"}
        items = [
            {**common, "retailPrice": 3.5},
            {**common, "skuName": "NC24ads A100 v4 Spot", "retailPrice": 0.4},
            {**common, "skuName": "NC24ads A100 v4 Low Priority", "retailPrice": 0.1},
            {**common, "productName": "NCads A100 v4 Series Windows", "retailPrice": 9.9},
        ]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"Items": items if f"'{A100}'" in asked else []}).encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the parent's name
        """Say nothing."""


@pytest.fixture
def retail() -> Iterator[str]:
    with serving(Retail) as address:
        yield f"{address}/"


def test_prices_are_refreshed_and_saved(retail: str, tmp_path: Path) -> None:
    one = cost.Prices("s", "then", "r", "USD", {A100: cost.Price(1.0)})
    fresh = cost.fetch(one, "westeurope", "2026-01-01", retail)
    assert fresh.skus == {A100: cost.Price(3.5, 0.4)}
    cost.save(fresh, tmp_path / "p.json")
    assert cost.load(tmp_path / "p.json") == fresh
    with pytest.raises(ConfigError, match="Standard_D2s_v5 is not sold in westeurope"):
        cost.fetch(PRICES, "westeurope", "2026-01-01", retail)


def test_prices_without_a_network() -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        cost.fetch(PRICES, "eastus", "2026-01-01", "http://127.0.0.1:9/")
