"""From nothing to a report and back to nothing: a stack up, measured, broken, reported, and down by its time."""
