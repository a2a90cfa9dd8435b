"""Whole, hashed checkpoints: when one is saved, where it lies, and going on from one."""
