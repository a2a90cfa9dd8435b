"""The scaling report: what a benchmark's history says about speed, and what stands in its way."""
