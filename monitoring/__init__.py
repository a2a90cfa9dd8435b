"""Monitoring beside a run: metrics, alerts that are proven by faults, dashboards, logs, traces and tracking."""
