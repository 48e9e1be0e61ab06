"""`rankbench run`: from the command to the table, and what can come between."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import faulty_strategies
import pytest
from pretend_host import wait_until

pytestmark = pytest.mark.integration

COMMAND = "snakemake --profile local_profile --workflow-profile none"

EXPERIMENT = """\
name: small
strategy: [single, ddp]
backend: [gloo, nccl]
topology: 1x2
launcher: manual
model: lenet
launches: 2
repeat_disturbed: false
steps: 4
warmup: 1
"""
SINGLE = "single.none.1x2.lenet.digits"
DDP = "ddp.gloo.1x2.lenet.digits.launcher=manual"


def records_of(root: Path) -> list[Path]:
    return sorted(root.glob("results/small/records/*/*/*/record.json"))


def argv(*words: str) -> list[str]:
    return [sys.executable, "-P", "-m", "rankbench.cli", "run", *words]


@pytest.fixture
def small(project):
    project.experiment(EXPERIMENT, "config.yaml")
    return project


def test_a_dry_run_says_what_would_run_and_writes_nothing(small):
    done = small.rankbench("run", "-n", "--only", "strategy=ddp", "backend=gloo")
    assert done.returncode == 0, done.stdout
    assert "1 cell: 1 to measure" in done.stdout
    assert "time not known yet" in done.stdout
    assert f"$ {COMMAND} --config " in done.stdout
    assert "'only=strategy=ddp backend=gloo'" in done.stdout
    done = small.rankbench("run", "-n", "--only", "strategy=ddp", "--json")
    facts = json.loads(done.stdout[done.stdout.index("{") :])
    assert facts["to_measure"] == {DDP: 2}
    (reason,) = facts["unsupported"].values()
    assert "nccl" in reason
    # Two launches and the gate, on two devices.
    assert facts["device_hours_at_most"] == pytest.approx(3 * 2 * 600 / 3600)
    assert facts["command"].startswith(f"{COMMAND} --config ")
    assert not (small.root / "results").exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--config", "only=strategy=ddp"), "EXPERIMENT, --override, --only"),
        (("--profile=slurm_profile",), "give --site before the --"),
        (("-n",), "-n measures nothing: give -n before the --"),
        ((DDP,), f"`rankbench rerun {DDP}` measures a cell again"),
        (("--no-such-option",), "Snakemake does not know these options"),
    ],
)
def test_options_of_snakemake_that_would_mislead_are_refused(small, flags, said):
    done = small.rankbench("run", "--", *flags)
    assert done.returncode == 2, done.stdout
    assert said in done.stdout
    assert not (small.root / "results").exists()


def test_a_run_tells_of_each_launch_and_ends_with_the_table(small):
    done = small.rankbench("run", "--no-plots")
    assert done.returncode == 0, done.stdout
    said = done.stdout
    assert "\x1b" not in said  # The output is not a terminal.
    assert re.search(r"\nsingle.none.1x2  2/2  launch 2  \d+ samples/s  ", said)
    assert "\nddp.gloo.1x2.launcher=manual  0/2  gate  as single within" in said
    assert re.search(r"  1 launch left, about \d+ s\n", said)
    assert re.search(r"\nddp.gloo.1x2.launcher=manual  ok 2/2\n", said)
    table = said[said.index("[95 % interval]") :]
    assert "files in results/small: report.html" in table
    (log,) = small.root.glob("results/small/work/logs/run-*.log")
    assert "Building DAG of jobs" in log.read_text()
    assert "Building DAG of jobs" not in said
    before = records_of(small.root)
    assert len(before) == 4
    # A copy, whose files have other times, has nothing to measure.
    results = small.root / "results"
    shutil.copytree(
        results.rename(small.root / "old"), results, copy_function=shutil.copyfile
    )
    assert "0 to measure, 2 measured" in small.rankbench("run", "small", "-n").stdout
    small.experiment(EXPERIMENT.replace("steps: 4", "steps: 5"), "config.yaml")
    again = small.rankbench("run", "-n").stdout
    assert again.count("(measured before the cell's definition changed; it had ") == 2
    small.experiment(EXPERIMENT, "config.yaml")
    # The second run measures nothing. Options after two dashes go to Snakemake.
    done = small.rankbench("run", "--no-plots", "--", "--forceall")
    assert done.returncode == 0, done.stdout
    assert "--forceall --config" in done.stdout
    assert records_of(small.root) == before


def test_a_failed_cell_is_exit_status_1(small):
    small.add_strategy("killed", faulty_strategies.KILLED)
    small.experiment(
        "name: small\nstrategy: [single, killed]\ntopology: 1x2\nlauncher: manual\n"
        "model: lenet\nlaunches: 1\nsteps: 4\nwarmup: 1\ngate: false\n",
        "config.yaml",
    )
    done = small.rankbench("run", "--no-plots", "--json")
    assert done.returncode == 1, done.stdout
    states = json.loads(done.stdout[done.stdout.index("\n[\n") :])
    status = {state["cell"]: state["status"] for state in states}
    killed = "killed.gloo.1x2.lenet.digits.launcher=manual"
    assert status == {SINGLE: "ok", killed: "crashed"}
    (state,) = (state for state in states if state["cell"] == killed)
    assert state["rerun"] == f"rankbench rerun {killed}"
    assert "killed.gloo.1x2.launcher=manual  0/1  launch 1  crashed: " in done.stdout


def test_ctrl_c_keeps_what_is_measured_and_a_second_run_is_refused(small):
    small.experiment(EXPERIMENT.replace("launches: 2", "launches: 6"), "config.yaml")
    run = small.popen(argv("--no-plots"))
    # Another test may hold the lock of the machine.
    wait_until(lambda: records_of(small.root), "a launch has ended")
    second = small.rankbench("run")
    assert second.returncode == 2
    assert "is in use by process" in second.stdout
    assert " run --no-plots)" in second.stdout
    # A terminal signals the whole process group; Snakemake is in another one. `timeout`
    # signals twice, which must not cost the table.
    os.killpg(run.pid, signal.SIGINT)
    os.killpg(run.pid, signal.SIGINT)
    said, _ = run.communicate(timeout=600)
    assert run.returncode == 130, said
    assert "stopped by SIGINT: finished launches are kept" in said
    assert "no table yet" not in said
    assert "\n  rankbench run --no-plots\n" in said
    small.wait_until_gone()
    kept = [path.read_bytes() for path in records_of(small.root)]
    assert any(json.loads(record)["status"] == "ok" for record in kept)
    done = small.rankbench("run", "--no-plots")
    assert done.returncode == 0, done.stdout
    assert "ddp.gloo.1x2.launcher=manual  6/6  launch " in done.stdout
    assert set(kept) <= {path.read_bytes() for path in records_of(small.root)}


def test_a_run_that_is_killed_takes_its_snakemake_along(small):
    small.experiment(EXPERIMENT.replace("launches: 2", "launches: 30"), "config.yaml")
    run = small.popen(argv("--no-plots"))
    wait_until(lambda: records_of(small.root), "a launch has ended")
    run.kill()
    run.wait()
    small.wait_until_gone()
    assert len(records_of(small.root)) < 60


# Files beside the experiment that have the names of modules.
SHADOWS = ("random.py", "profile.py", "torch.py", "tokenize.py", "json.py", "yaml.py")


def test_no_file_of_the_project_is_taken_for_a_module(small):
    for name in SHADOWS:
        (small.root / name).write_text("open('executed', 'w')\nraise SystemExit(7)\n")
    small.experiment(EXPERIMENT.replace("launches: 2", "launches: 1"), "config.yaml")
    done = small.rankbench("run", "--no-plots")
    assert done.returncode == 0, done.stdout
    assert small.snakemake("experiment=config.yaml", flags=("-n",)).returncode == 0
    assert len(records_of(small.root)) == 2
    assert not (small.root / "executed").exists()


@pytest.mark.equipment
def test_a_locale_of_latin_1(small, tmp_path_factory, monkeypatch):
    """All texts of ours are UTF-8, and the user's may be."""
    place = tmp_path_factory.mktemp("locales")
    name = place / "en_US.ISO-8859-1"
    made = ["localedef", "-i", "en_US", "-f", "ISO-8859-1", str(name)]
    if not shutil.which("localedef") or subprocess.run(made).returncode:
        pytest.skip("no sources of locales (Debian: locales)")
    monkeypatch.setenv("LOCPATH", str(place))
    monkeypatch.setenv("LC_ALL", name.name)
    monkeypatch.delenv("PYTHONUTF8", raising=False)
    small.add_own_files()
    text = EXPERIMENT.replace("model: lenet", "model: net.py")
    small.experiment(f"{text}description: größer ≤ 95 %\n", "config.yaml")
    done = small.rankbench("run", "--no-plots")
    assert done.returncode == 0, done.stdout
    assert "größer ≤ 95" in (small.root / "results/small/report.html").read_text()
    assert small.snakemake("experiment=config.yaml", flags=("-n",)).returncode == 0
