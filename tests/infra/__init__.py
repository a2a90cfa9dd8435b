"""Tests of `infra`: nothing here reaches a cloud."""
