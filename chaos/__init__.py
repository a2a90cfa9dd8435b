"""Breaking training on purpose; README.md says how. Run as `python -m chaos`."""
