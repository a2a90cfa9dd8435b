"""Tests of `monitoring`."""
