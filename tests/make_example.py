"""Makes published examples anew: docs/example, README's answer, method.md's bracket.

    python tests/make_example.py                     run config.yaml first
    python tests/make_example.py results/quickstart  of a run that is there
    python tests/make_example.py --readme            both pages alone, of docs/example
    python tests/make_example.py --name two-hosts    of docs/gallery.md

`make example` calls it. The screenshot needs Chromium and its driver; as root also the
user of tests/machine/add_user.sh. The example two-hosts needs a pretend cluster.
"""

from __future__ import annotations

import argparse
import base64
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bracket import show
from rankbench.record import Layout
from rankbench.results.advice.answer import find_answer
from rankbench.results.bundle.verify import verify_bundle
from rankbench.results.bundle.write import publish, write_bundle
from rankbench.results.elements.text import show_estimate
from rankbench.results.numbers.result_set import read
from rankbench.results.sections.answer import in_brief, to_lines

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results/quickstart"
EXAMPLE, README = ROOT / "docs/example", ROOT / "README.md"
METHOD = ROOT / "docs/method.md"
SCREENSHOT = ROOT / "docs/screenshot.png"
WIDTH, HEIGHT = 1280, 1500
GALLERY = ROOT / "docs/gallery.md"
# Examples of the gallery; one with a rate has two pretended hosts, whose links have it.
RATES = {"two-hosts": "100mbit", "settings": None}


def make_answer(example: Path = EXAMPLE) -> list[str]:
    """Lines of a block that shows the answer of a bundle."""
    lines = to_lines(in_brief(find_answer(read(Layout(example)))))
    return ["```text", *lines, "```"]


def make_bracket(example: Path = EXAMPLE) -> list[str]:
    """Lines that work out the speedup of the first row that has one."""
    rows = read(Layout(example)).measured
    launches = {
        one.id: {int(turn[1]): rate for turn, rate in zip(*columns, strict=True)}
        for one in rows
        for columns in [(one.launches[n] for n in ("turn", "throughput"))]
    }
    base = next(one.speedup_base for one in rows if one.speedup_base)
    row = next(one for one in rows if one.id != base.id)
    pairs = {(one.id, own.id) for one in rows for own in one.bases if own.id != one.id}
    said = str(show_estimate(row.numbers["speedup"]))
    return show(launches, row.id, base.id, len(pairs), said)


def fill(text: str, lines: list[str], name: str = "answer") -> str:
    """A page with these lines between its comments."""
    start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, found, rest = text.partition(start)
    assert found, f"the page has no {start}"
    after = rest.partition(end)[2]
    return "".join([before, start, *(f"{line}\n" for line in lines), end, after])


def measure(results: Path, experiment: Path) -> None:
    """Measure an experiment anew.

    Raises:
        SystemExit: there are results, or the run has failed.
    """
    refuse(results)
    program = Path(sys.executable).with_name("rankbench")
    done = subprocess.run([program, "run", experiment], cwd=ROOT)
    if done.returncode:
        sys.exit(done.returncode)


def refuse(results: Path) -> None:
    """Do not continue an old run."""
    if results.exists():
        sys.exit(f"{results.relative_to(ROOT)} exists: move it away")


def write_verified(results: Path, folder: Path) -> None:
    """Write the anonymous bundle of a run into a folder.

    Raises:
        SystemExit: it does not verify.
    """
    shutil.rmtree(folder, ignore_errors=True)
    write_bundle(Layout(results), folder, anonymise=True)
    if faults := verify_bundle(folder).findings:
        sys.exit("\n".join(map(str, [f"{folder} does not verify:", *faults])))


def make_for_gallery(name: str) -> None:
    """Measure an example of the gallery, and write its answer and its plot."""
    results = ROOT / "results" / name
    text = GALLERY.read_text()
    (experiment,) = re.findall(
        rf"^```yaml\n(name: {name}\n.*?)^```$", text, re.M | re.S
    )
    if rate := RATES[name]:
        from demo import run

        refuse(results)
        if status := run(name, experiment, hosts=2, rate=rate):
            sys.exit(status)
    else:
        file = ROOT / "build" / f"{name}.yaml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(experiment)
        measure(results, file)
    with tempfile.TemporaryDirectory(prefix="rankbench-gallery-") as folder:
        bundle = Path(folder) / name
        write_verified(results, bundle)
        plot = GALLERY.with_suffix("") / f"{name}.svg"
        plot.parent.mkdir(exist_ok=True)
        shutil.copy(bundle / "plots/throughput.svg", plot)
        text = "".join(f"{line}\n" for line in make_answer(bundle)[1:-1])
        # A bundle hides where the file was; its reader has that of the page.
        plot.with_suffix(".txt").write_text(text.replace("/path1", f"{name}.yaml"))


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
    parser.add_argument(
        "--readme", action="store_true", help="write README and docs/method.md alone"
    )
    parser.add_argument("--name", choices=RATES, help="an example of the gallery")
    arguments = parser.parse_args()
    # A program finds only modules of its own folder.
    sys.path.append(str(ROOT / "tests/cluster"))
    if arguments.name:
        make_for_gallery(arguments.name)
        return
    if not arguments.readme:
        from browser import find_programs

        programs = find_programs()
        if programs is None:
            sys.exit("the screenshot needs Chromium and its driver")
        if arguments.results is None:
            measure(RESULTS, Path("config.yaml"))
        write_verified((arguments.results or RESULTS).resolve(), EXAMPLE)
        with tempfile.TemporaryDirectory(prefix="rankbench-example-") as name:
            Path(name).chmod(0o1777)
            take_screenshot(programs, Path(name))
    README.write_text(fill(README.read_text(), make_answer()))
    METHOD.write_text(fill(METHOD.read_text(), make_bracket(), "bracket"))


if __name__ == "__main__":
    main()
