# PYTHON_ARGCOMPLETE_OK
"""`pg serving …`: what can be typed stands in `serving.cli`."""

from proving_ground.bench.start import start

if __name__ == "__main__":
    start("serving")
