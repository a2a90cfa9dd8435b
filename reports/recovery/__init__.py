"""The recovery report: what a chaos run's history says about recovering and about still being the same training."""
