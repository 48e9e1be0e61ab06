"""The documents show what works: their files are written and their commands run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from documents import read_steps
from unit.keys import make_key
from unit.synthetic import make_cell, plan_cell, write_launches, write_plan

pytestmark = pytest.mark.integration

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize(
    "name",
    [
        *("experiments", "extending", "your-own-model", "your-own-script"),
        "language-models",
    ],
)
def test_a_document_does_what_it_says(project, name):
    steps = read_steps((DOCS / f"{name}.md").read_text())
    assert any(step.file for step in steps)
    assert any(step.file is None for step in steps)
    tools = Path(sys.executable).parent
    for step in steps:
        if step.file:
            path = project.root / step.file
            path.parent.mkdir(parents=True, exist_ok=True)
            text = step.text.replace("launches: 12", "launches: 1")
            if name != "extending":  # What it adds is judged by the gate.
                text = text.replace("launches: 1\n", "launches: 1\ngate: false\n")
            path.write_text(text)
            continue
        program, *arguments = shlex.split(step.text)
        if arguments[0] == "run" and "-n" not in arguments:
            # Plots would take most of the time here, and a script has four launches.
            fewer = ["--only", "topology=1x2"] if arguments[1] == "train.py" else []
            arguments[1:1] = [*fewer, "--no-plots"]
        done = project.run([str(tools / program), *arguments])
        # One launch does not decide anything.
        well = (0, 3) if arguments[0] == "answer" else (0,)
        assert done.returncode in well, f"{step.text}\n{done.stdout}"
        if arguments[0] == "status":
            # The words about a cell may continue on the lines below.
            lines = [line for line in done.stdout.splitlines() if line[0] != " "]
            assert {line.split()[0] for line in lines} == {"ok"}, done.stdout


def test_the_strategy_of_the_documents_passes_the_contract(project):
    """What docs/extending.md shows learns what a single process learns."""
    (step,) = [
        step
        for step in read_steps((DOCS / "extending.md").read_text())
        if step.file and step.file.endswith("late_average.py")
    ]
    assert step.file
    place = project.root / "src/rankbench/rank/strategies"
    (place / step.file).write_text(step.text)
    tests = DOCS.parent / "tests"
    done = project.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *(
                "--rootdir",
                str(tests.parent),
                "-c",
                str(tests.parent / "pyproject.toml"),
            ),
            *(str(tests / "contract/test_strategies.py"), "-k", "late_average"),
        ]
    )
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout


def test_two_nights_end_in_a_comparison(project):
    """docs/comparing.md: the script of every night, without its virtual environment."""
    text = (DOCS / "comparing.md").read_text()
    files = {step.file: step.text for step in read_steps(text) if step.file}
    fewer = "launches: 1\ngate: false"
    night = files["nightly.yaml"].replace("launches: 6", fewer)
    (project.root / "nightly.yaml").write_text(night.replace("[ddp, zero1]", "ddp"))
    (script,) = re.findall(r"^```sh\n(set -e\n.*?)^```$", text, re.MULTILINE | re.S)
    tools = f"export PATH={Path(sys.executable).parent}:$PATH"
    script = script.replace(". .venv/bin/activate", tools)
    script = script.replace("run nightly.yaml", "run --no-plots nightly.yaml")
    done = project.run(["bash", "-c", script])
    assert "is one side" in done.stdout, done.stdout
    (first,) = (project.root / "nightly").iterdir()
    first.rename(first.with_name("2026-01-01.json"))
    done = project.run(["bash", "-c", script])
    assert re.search("^runs +2 of nightly, ", done.stdout, re.M), done.stdout
    assert (project.root / "nightly.html").exists()


def test_bundles_are_signed_as_the_document_says(tmp_path):
    if not shutil.which("ssh-keygen"):
        pytest.skip("ssh-keygen is not installed: apt-get install openssh-client")
    cell = plan_cell(make_cell("single"))
    layout = write_plan(tmp_path / "results/quickstart", [cell], launches=1)
    write_launches(layout, cell, count=1, wanted=1)
    (tmp_path / ".ssh").mkdir()
    for name in ("id_ed25519", "id_rsa"):
        make_key(tmp_path / ".ssh" / name)
    shutil.copy(tmp_path / ".ssh/id_ed25519.pub", tmp_path / "USER.keys")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "HOME": str(tmp_path), "PATH": path}
    commands = [step.text for step in read_steps((DOCS / "publishing.md").read_text())]
    assert len(commands) == 6
    said = ""
    for command in commands:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        said += done.stdout
    assert "SHA256SUMS is signed by USER with ED25519 key SHA256:" in said
    assert "SHA256SUMS is signed by user@example.org with ED25519 key" in said
