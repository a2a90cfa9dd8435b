"""Tests of `reports.recovery`."""
