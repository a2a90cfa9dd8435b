"""Tests of what breaks things."""
