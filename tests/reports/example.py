"""The pictures in the README: `python -m tests.reports.example RUN`, the first screen of a run's report in Chromium.

Only of a sealed run whose verdict is pass; a scaling report goes to `reports/example.png`, a recovery report to
`reports/recovery/example.png`.
"""

from __future__ import annotations

import base64
import io
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from proving_ground.bench.rundir import RunDir, RunDirError
from proving_ground.reports import verdicts
from proving_ground.reports.recovery.report import is_chaos
from tests.reports.test_browser import opened, show

ROOT = Path(__file__).parent.parent.parent
WIDTH, HEIGHT = 1280, 820
MOST_BYTES = 150_000
COLOURS = 128  # letters are grey at their edges; fewer look torn


def main(argv: Sequence[str], root: Path = ROOT) -> int:
    """Write one picture; exit status 2 where the run must not be shown."""
    if len(argv) != 1:
        print("usage: python -m tests.reports.example RUN", file=sys.stderr)
        return 2
    try:
        print(write(RunDir(Path(argv[0])), root))
    except (RunDirError, OSError) as error:
        print(f"example: {error}", file=sys.stderr)
        return 2
    return 0


def write(run: RunDir, root: Path) -> Path:
    """The picture's path.

    Raises:
        RunDirError: the run is not complete, or its verdict is no pass.
    """
    value = verdicts.overall(run.read("results")["verdicts"])
    if value != verdicts.PASS or not run.read("seal").get("complete"):
        raise RunDirError(f"{run.path}: a picture needs a complete run whose verdict is pass; this one is {value}")
    place = root / "reports" / ("recovery" if is_chaos(run.read("plan")) else "") / "example.png"
    place.write_bytes(picture(run.report))
    return place


def picture(page: Path) -> bytes:
    """The first screen as a small PNG."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:  # its last writers may outlive it
        browser = opened(Path(profile))
        try:
            show(browser, page, WIDTH, height=HEIGHT)
            shot = base64.b64decode(browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"])
        finally:
            browser.quit()
    out = io.BytesIO()
    Image.open(io.BytesIO(shot)).convert("RGB").quantize(COLOURS).save(out, "png", optimize=True)
    return out.getvalue()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
