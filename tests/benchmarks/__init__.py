"""Timings of hot paths; run by hand, never part of the tests."""
