"""Tests of the run machinery, on the fake cluster; the local one is tested in `clusters/`."""
