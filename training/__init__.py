"""The trainer: everything that goes into the image, and nothing of the other folders."""
