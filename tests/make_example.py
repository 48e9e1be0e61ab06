"""Makes docs/example, the answer in README and the screenshot anew, from one run.

    python tests/make_example.py                     run config.yaml first
    python tests/make_example.py results/quickstart  of a run that is there
    python tests/make_example.py --readme            README alone, of docs/example

`make example` calls it. The screenshot needs Chromium and its driver; as root also the
user of tests/machine/add_user.sh.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rankbench.record import Layout
from rankbench.results.advice.words import in_brief, to_lines
from rankbench.results.bundle.publish import publish
from rankbench.results.bundle.verify import verify_bundle
from rankbench.results.bundle.write import write_bundle

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results/quickstart"
EXAMPLE, README = ROOT / "docs/example", ROOT / "README.md"
SCREENSHOT = ROOT / "docs/screenshot.png"
WIDTH, HEIGHT = 1280, 1500


def make_answer(example: Path = EXAMPLE) -> list[str]:
    """Lines of the block of README that shows the answer of a bundle."""
    answer = json.loads((example / "answer.json").read_text())
    return ["```text", *to_lines(in_brief(answer)), "```"]


def fill(text: str, lines: list[str]) -> str:
    """README with this answer between its comments."""
    start, end = "<!-- answer -->\n", "<!-- /answer -->"
    before, found, rest = text.partition(start)
    assert found, f"README has no {start}"
    return "".join(
        [before, start, *(f"{line}\n" for line in lines), end, rest.partition(end)[2]]
    )


def run_quickstart() -> None:
    """Measure config.yaml anew.

    Raises:
        SystemExit: there are results, or the run has failed.
    """
    if RESULTS.exists():
        place = RESULTS.relative_to(ROOT)
        sys.exit(f"{place} exists: move it away, or make the example of it: {place}")
    program = Path(sys.executable).with_name("rankbench")
    done = subprocess.run([program, "run", "config.yaml"], cwd=ROOT)
    if done.returncode:
        sys.exit(done.returncode)


def take_screenshot(programs: tuple[str, str], folder: Path) -> None:
    """Of the top of the site of docs/example.

    Args:
        programs: the browser and its driver.
        folder: that every user may write to.
    """
    from browser import start_browser
    from conftest import USER

    shutil.copytree(EXAMPLE, folder / "quickstart")
    page = publish(Layout(folder / "quickstart")).page
    user = [] if os.getuid() else ["runuser", "-u", USER, "--"]
    with start_browser(*programs, user=user, folder=folder) as browser:
        browser.open(page, width=WIDTH)
        browser.resize(WIDTH, HEIGHT)
        picture = browser.command("Page.captureScreenshot", {"format": "png"})
    SCREENSHOT.write_bytes(base64.b64decode(picture["data"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", type=Path, nargs="?", help="of a run that is there")
    parser.add_argument("--readme", action="store_true", help="write README alone")
    arguments = parser.parse_args()
    if not arguments.readme:
        from browser import find_programs

        programs = find_programs()
        if programs is None:
            sys.exit("the screenshot needs Chromium and its driver")
        if arguments.results is None:
            run_quickstart()
        layout = Layout((arguments.results or RESULTS).resolve())
        write_bundle(layout, EXAMPLE, anonymise=True)
        if faults := verify_bundle(EXAMPLE).findings:
            sys.exit("\n".join(map(str, ["docs/example does not verify:", *faults])))
        with tempfile.TemporaryDirectory(prefix="rankbench-example-") as name:
            Path(name).chmod(0o1777)
            take_screenshot(programs, Path(name))
    README.write_text(fill(README.read_text(), make_answer()))


if __name__ == "__main__":
    main()
