"""The Helm chart of what goes on a cluster, for those who do not use Pulumi: made from the same manifests as `local`'s.

`pg infra chart` writes it to `infra/chart/`; a test keeps the committed one equal to what would be written, and
compares what Helm renders from it with what Pulumi declares. Rules and dashboards are read by Helm from the folders of
monitoring, to which the chart's are links.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import yaml

from proving_ground.infra.cluster.everything import manifests
from proving_ground.infra.cluster.facts import Facts, dashboards, rules
from proving_ground.infra.cluster.images import IMAGES
from proving_ground.infra.config import load

FOLDER = Path(__file__).with_name("chart")
FOLDERS = ("rules", "dashboards")  # of monitoring, that the chart has links to
VERSION = "0.1.0"
PASSWORD = "grafanaPassword"  # noqa: S105 - the name of a value
MARK = re.compile(r"'@@([\w./-]+)@@'")


def facts(images: dict[str, str], password: str) -> Facts:
    """What the chart is made for: any cluster, no cloud."""
    environment = load("local", environ={})
    cluster = dataclasses.replace(environment.kubernetes, images=images)
    return Facts(
        dataclasses.replace(environment, kubernetes=cluster), grafana_password=password,
        rules=rules(), dashboards=dashboards(),
    )  # fmt: skip


def marked() -> Facts:
    """The same with a mark wherever Helm puts something in."""
    made = facts({name: f"@@images.{name}@@" for name in IMAGES}, f"@@{PASSWORD}@@")
    return dataclasses.replace(
        made, rules={it: f"@@rules/{it}@@" for it in made.rules},
        dashboards={it: f"@@dashboards/{it}@@" for it in made.dashboards},
    )  # fmt: skip


def files() -> dict[str, str]:
    """Path in the chart → text."""
    chart = {
        "apiVersion": "v2",
        "name": "proving-ground",
        "description": "What runs on a cluster to measure training on it: the same objects as Pulumi's.",
        "version": VERSION,
        "appVersion": VERSION,
    }
    values = {"images": dict(IMAGES), PASSWORD: ""}
    made: dict[str, list[str]] = {}
    for manifest in manifests(marked()):
        made.setdefault(f"templates/{manifest['kind'].lower()}.yaml", []).append(_template(manifest))
    plain = {"Chart.yaml": chart, "values.yaml": values}
    return {name: yaml.safe_dump(text, sort_keys=False) for name, text in plain.items()} | {
        name: "---\n".join(texts) for name, texts in made.items()
    }


def _template(manifest: dict[str, Any]) -> str:
    text = yaml.dump(manifest, Dumper=_Whole, sort_keys=False, width=10_000)
    return MARK.sub(_value, text.replace("{{", '{{ "{{" }}'))


class _Whole(yaml.SafeDumper):
    """Writes what is used twice twice: anchors are hard to read, and Helm's users edit these files."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ANN401, ARG002 - the parent's signature
        """Never an anchor."""
        return True


def _value(found: re.Match[str]) -> str:
    name = found.group(1)
    if name.startswith(FOLDERS):
        return f'{{{{ required "{name} is not in the chart" (.Files.Get "{name}") | toJson }}}}'
    if name == PASSWORD:
        return f'{{{{ required "{PASSWORD} must be set" .Values.{name} | quote }}}}'
    return f"{{{{ .Values.{name} | quote }}}}"


def write(folder: Path = FOLDER) -> None:
    """Write the chart, replacing templates that are no longer made."""
    for old in folder.glob("templates/*.yaml"):
        old.unlink()
    for name, text in files().items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
