"""Hyper-parameter search with the trainer as it is: suites in TOML, Ray Tune, a ledger, a report. See README.md."""
