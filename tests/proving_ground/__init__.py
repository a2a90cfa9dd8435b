"""Tests of the way in: `pg`, the Python API, the pytest fixture, the wheel."""
