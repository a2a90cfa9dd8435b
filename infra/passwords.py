"""Where a stack's secrets come from, by their names. Used by `infra.program` (Pulumi) and `infra.direct` (kubectl)."""

from __future__ import annotations

VARIABLES = {"grafana_password": "PROVING_GROUND_GRAFANA_PASSWORD", "webhook": "PROVING_GROUND_ALERT_WEBHOOK"}
"""Where a secret may also come from, on a machine without the file that `pulumi config` writes."""
KEPT = {
    "grafana_password": ("pg-monitoring/secret/grafana", "password"),
    "webhook": ("pg-monitoring/secret/alertmanager", "webhook"),
}
"""The object on the cluster that holds a secret, and its key there."""
NO_WEBHOOK = "none"
"""What takes the webhook away; that a machine does not know it does not."""
