"""Breaking training on purpose; README.md says how. Run as `pg chaos`."""
