"""Where samples come from, and which rank learns from which when."""
