"""Measuring programs beside the trainer: what they are told, and each of them."""
