"""The pictures of docs/report.md: a small comparison, its page and its stored run, as Chromium shows them.

    python reproduce/report_screenshot.py FOLDER [CHROMIUM]

FOLDER receives the comparison (about three minutes on two cores; an existing one is continued) and its pages. The
pictures are written to docs/. Needs the extras cli, bench and report, and Chromium.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from amc_agents.operations.page.run_page import run_page
from amc_agents.operations.page.run_view import read_run
from amc_agents.operations.report import report_page

DOCS = Path(__file__).resolve().parents[1] / "docs"
BENCH = "bench --tasks 40 --seeds 2 --particles 8 --resume --out"
QUIET = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --virtual-time-budget=4000"
)


def picture(page: Path, target: Path, height: int, chromium: str) -> None:
    """Write the top of a page as a PNG of 1100 pixels width."""
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [chromium, *QUIET.split(), f"--user-data-dir={profile}", f"--window-size=1100,{height}",
             f"--screenshot={target}", page.resolve().as_uri()],
            check=True, capture_output=True,
        )  # fmt: skip
    print(f"{target}: {target.stat().st_size // 1000} kB")


def main(folder: Path, chromium: str = "chromium") -> None:
    """Compare, build both pages, and take their pictures."""
    command = "from amc_agents.cli import main; main()"
    subprocess.run([sys.executable, "-c", command, *BENCH.split(), str(folder)], check=True)
    comparison, run = folder / "report.html", folder / "run.html"
    comparison.write_text(report_page(folder), encoding="utf-8")
    run.write_text(run_page(read_run(folder / "run.json")), encoding="utf-8")
    picture(comparison, DOCS / "report.png", 1350, chromium)
    picture(run, DOCS / "report-run.png", 1290, chromium)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
