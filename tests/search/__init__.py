"""Tests of `search/`."""
