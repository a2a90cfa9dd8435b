"""Tests of clusters of other machines, without any: `tests/engines` has those with real ones."""
