"""What a cluster costs: an estimate before it exists, and prices that can be refreshed.

Called by `pg infra cost`. Pure but for `fetch`; every figure says whether its price is assumed. Imports without
pulumi. Only machines are counted: disks, traffic and the control plane come on top.
"""

from __future__ import annotations

import dataclasses
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from proving_ground.infra.config import Environment
from proving_ground.infra.reading import ConfigError, build

SHIPPED = Path(__file__).with_name("prices.json")
RETAIL_API = "https://prices.azure.com/api/retail/prices"
TIMEOUT_S = 30


@dataclass(frozen=True)
class Price:
    """Dollars an hour; `spot` None where it is not known; `assumed` where no source was read."""

    on_demand: float
    spot: float | None = None
    assumed: bool = False

    def hourly(self, *, spot: bool) -> tuple[float, bool]:
        """The price to count with, and whether it is assumed: an unknown spot price counts as on demand."""
        if not spot:
            return self.on_demand, self.assumed
        return (self.on_demand, True) if self.spot is None else (self.spot, self.assumed)


@dataclass(frozen=True)
class Prices:
    """A price table with where and when it comes from."""

    source: str
    as_of: str
    region: str
    currency: str
    skus: Mapping[str, Price]


@dataclass(frozen=True)
class Line:
    """One kind of machine: how many at least and at most, and what one costs an hour."""

    name: str
    sku: str
    spot: bool
    least: int
    most: int
    usd_per_hour: float
    assumed: bool


@dataclass(frozen=True)
class Estimate:
    """What an environment costs before it exists."""

    environment: str
    hours: float
    lines: tuple[Line, ...]

    @property
    def least(self) -> float:
        """Dollars with every pool at its minimum, all the time."""
        return sum(line.least * line.usd_per_hour for line in self.lines) * self.hours

    @property
    def most(self) -> float:
        """Dollars with every pool at its maximum, all the time."""
        return sum(line.most * line.usd_per_hour for line in self.lines) * self.hours


def load(file: Path = SHIPPED) -> Prices:
    """The price table that ships with the project, or another one.

    Raises:
        ConfigError: missing, or not such a table.
    """
    try:
        return build(Prices, json.loads(file.read_text()), file.name)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{file}: not JSON: {error}") from None


def price(prices: Prices, sku: str) -> Price:
    """The price of a size.

    Raises:
        ConfigError: the table does not have it.
    """
    if sku not in prices.skus:
        raise ConfigError(f"prices: {sku} is not in the table; allowed: {', '.join(prices.skus)}")
    return prices.skus[sku]


def estimate(environment: Environment, prices: Prices, hours: float) -> Estimate:
    """Before `up`: system machines and pools, between their minimum and maximum; nothing where there is no cloud."""
    wanted: list[tuple[str, str, bool, int, int]] = []
    if environment.azure is not None:
        system, ml = environment.azure.system_pool, environment.azure.ml_compute
        wanted.append(("system", system.sku, False, system.min_nodes, system.max_nodes))
        wanted += [(pool.name, pool.skus[0], pool.spot, pool.min_nodes, pool.max_nodes) for pool in environment.pools]
        wanted += [("azure-ml", ml.sku, ml.spot, ml.min_nodes, ml.max_nodes)] if ml else []
    lines = tuple(
        Line(name, sku, spot, least, most, *price(prices, sku).hourly(spot=spot))
        for name, sku, spot, least, most in wanted
    )
    return Estimate(environment.name, hours, lines)


def fetch(prices: Prices, region: str, today: str, api: str = RETAIL_API) -> Prices:
    """The same sizes at today's public retail prices of a region.

    Raises:
        ConfigError: the service cannot be reached, or does not know a size.
    """
    skus = {sku: _fetch_one(api, region, sku) for sku in prices.skus}
    return Prices(f"{api} (Linux, consumption)", today, region, "USD", skus)


def _fetch_one(api: str, region: str, sku: str) -> Price:
    asked = f"serviceName eq 'Virtual Machines' and armRegionName eq '{region}' and armSkuName eq '{sku}'"
    query = urllib.parse.urlencode({"$filter": f"{asked} and priceType eq 'Consumption'"})
    url = f"{api}?{query}"
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:  # noqa: S310 - https, or a test's loopback
            items = json.load(answer)["Items"]
    except (urllib.error.URLError, TimeoutError, ValueError, KeyError) as error:
        raise ConfigError(f"prices: {api} cannot be read: {error}") from None
    linux = [item for item in items if "Windows" not in item["productName"] and "Low Priority" not in item["skuName"]]
    on_demand = [item["retailPrice"] for item in linux if "Spot" not in item["skuName"]]
    spot = [item["retailPrice"] for item in linux if "Spot" in item["skuName"]]
    if not on_demand:
        raise ConfigError(f"prices: {sku} is not sold in {region}")
    return Price(float(min(on_demand)), float(min(spot)) if spot else None)


def save(prices: Prices, file: Path) -> None:
    """Write a table in the form that `load` reads."""
    file.write_text(json.dumps(dataclasses.asdict(prices), indent=1) + "\n")
