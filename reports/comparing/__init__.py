"""Runs beside each other: is one slower, where did it change, pages laid over each other."""
