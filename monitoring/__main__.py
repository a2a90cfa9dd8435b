# PYTHON_ARGCOMPLETE_OK
"""`pg monitoring …`: what can be typed stands in `monitoring.cli`."""

from proving_ground.bench.start import start

if __name__ == "__main__":
    start("monitoring")
