"""What gets a job over failures: live (survivors carry on) and restart (a launcher on each node)."""
