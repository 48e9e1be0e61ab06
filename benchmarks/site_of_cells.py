"""The size of the site of 1,000 cells, and how fast it opens from disk.

The cells are synthetic, with six launches each. The browser is a headless Chromium.

    PYTHONPATH=tests:tests/cluster python benchmarks/site_of_cells.py
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from browser import Browser, find_programs, start_browser
from rankbench.results.bundle.write import publish
from unit.synthetic import write_many

MIB = 1024**2

# Milliseconds after the start of the navigation: first paint, and all rows shown.
TIMES = """
const [painted] = performance.getEntriesByName("first-contentful-paint");
const [shown] = performance.getEntriesByName("shown");
return painted && shown ? [painted.startTime, shown.startTime] : null;
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=1_000)
    parser.add_argument("--loads", type=int, default=11)
    arguments = parser.parse_args()
    programs = find_programs()
    if programs is None:
        sys.exit("no Chromium and driver: bash tests/machine/install_chromium.sh")
    user = ["runuser", "-u", "rankbench", "--"] if os.getuid() == 0 else []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o1777)
        layout = write_many(folder / "many", arguments.cells)
        begun = time.perf_counter()
        site = publish(layout)
        seconds = time.perf_counter() - begun
        print(
            f"{site.cells} cells: site {site.bytes / MIB:.2f} MiB, of which the page "
            f"{site.page.stat().st_size / MIB:.2f} MiB; written in {seconds:.1f} s"
        )
        with start_browser(*programs, user=user, folder=folder) as browser:
            times = [time_load(browser, site.page) for _ in range(arguments.loads)]
    for what, found in zip(
        ("first paint", "rows shown"), zip(*times, strict=True), strict=True
    ):
        low, middle, high = min(found), statistics.median(found), max(found)
        print(f"{what}: median {middle:.0f} ms [{low:.0f} to {high:.0f}]")


def time_load(browser: Browser, page: Path) -> tuple[float, float]:
    browser.open(page)
    browser.wait_for(lambda: browser.run(TIMES), "the first view")
    painted, shown = browser.run(TIMES)
    return painted, shown


if __name__ == "__main__":
    main()
