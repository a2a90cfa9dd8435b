"""Tests of the clusters; those marked `root` make real isolated nodes."""
