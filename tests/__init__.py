"""Tests, in the order of the folders."""
