# PYTHON_ARGCOMPLETE_OK
"""`pg loop …`: what can be typed stands in `loop.cli`."""

from proving_ground.bench.start import start

if __name__ == "__main__":
    start("loop")
