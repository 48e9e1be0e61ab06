"""From an experiment to a table by Snakemake, again and in parts."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from conftest import Project, with_data
from evidence import read_record, read_table
from rankbench.launch.job.rounds import draw
from unit.test_hostile_values import PIECES, make_values

pytestmark = pytest.mark.integration

SMALL = """
name: small
strategy: [single, dp, ddp]
backend: [gloo, mpi, nccl]
topology: 1x2
model: lenet
batch_size: 32
launches: 1
steps: 4
warmup: 1
time_limit: 60
backend_logs: true
"""

ONE = "single.none.1x2.lenet.digits.batch_size=32"
DDP = "ddp.gloo.1x2.lenet.digits.batch_size=32"


def records_of(root: Path, cell: str = "*", name: str = "small") -> dict[str, bytes]:
    """Every record, by path: what must never change again."""
    folder = root / f"results/{name}/records"
    found = sorted(folder.glob(f"{cell}/*/*/record.json"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.fixture(scope="module")
def measured(shared_project) -> Path:
    """A project with the small experiment measured once."""
    shared_project.experiment(SMALL)
    done = shared_project.snakemake()
    assert done.returncode == 0, done.stdout
    (shared_project.root / "output.txt").write_text(done.stdout)
    return shared_project.root


@pytest.fixture
def again(measured: Path, tmp_path: Path):
    """A copy of the measured project, to change at will."""
    shutil.copytree(measured, tmp_path / "copy", symlinks=True)
    return Project((tmp_path / "copy").resolve())


@pytest.mark.first
def test_every_cell_has_a_row_with_a_status(measured):
    table = read_table(measured, "small")
    states = {cell: row["status"] for cell, row in table.items()}
    assert states == {
        ONE: "ok",
        "dp.none.1x2.lenet.digits.batch_size=32": "unsupported",
        DDP: "ok",
        "ddp.mpi.1x2.lenet.digits.batch_size=32": "unsupported",
        "ddp.nccl.1x2.lenet.digits.batch_size=32": "unsupported",
    }
    assert all(row["reason"] for row in table.values() if row["status"] != "ok")
    # This experiment has steps and no epochs.
    assert all(row["accuracy"] == "" for row in table.values())


def test_output_says_what_runs_and_how_far_it_is(measured):
    output = (measured / "output.txt").read_text()
    assert "5 cells: 2 to measure, 0 measured, 3 that cannot run here" in output
    assert f"{ONE}  1/1  launch 1  " in output
    assert "1 launch left, about" in output


@pytest.mark.first
def test_a_record_explains_itself(measured):
    (text,) = records_of(measured, DDP).values()
    record = json.loads(text)
    assert record["shape"]["ranks"] == len(record["ranks"]) == 2
    assert record["samples"] == 2 * 32 * 4
    assert "torch.distributed.run" in record["launcher"]["argv"]
    cores = [set(rank["cores"]) for rank in record["ranks"]]
    assert not cores[0] & cores[1]
    assert [rank["threads"] for rank in record["ranks"]] == [1, 1]
    assert record["hosts"][0]["cpu"]
    assert record["software"]["torch"]
    assert record["transport"]["backend"] == "gloo"
    assert record["launcher"]["env"]["UCX_LOG_LEVEL"] == "info"  # `backend_logs`
    # There are no loader processes and no GPU here.
    assert all(rank["cpu_utilisation"] > 0 for rank in record["ranks"])
    assert all(rank["loader_utilisation"] == 0 for rank in record["ranks"])
    assert record["devices"] is None
    assert record["code"]["rank"]
    assert record["seconds"].keys() == {
        "startup",
        "setup",
        "warmup",
        "train",
        "collectives",
        "evaluate",
        "launch",
    }
    swept = [(p["operation"], p["bytes"]) for p in record["collectives"]]
    assert swept == [("all_reduce", 4**k) for k in range(5, 5 + len(swept))]
    assert record["hosts"][0]["os"]


def test_a_dry_run_writes_nothing(project):
    project.experiment(SMALL)
    before = sorted(p for p in project.root.rglob("*") if ".snakemake" not in p.parts)
    done = project.snakemake(flags=("-n",))
    assert done.returncode == 0, done.stdout
    assert "dp needs 2 CUDA devices" in done.stdout
    assert "2 launches, 1 more for gates or profiles, 5 processes" in done.stdout
    after = sorted(
        p
        for p in project.root.rglob("*")
        if ".snakemake" not in p.parts and "__pycache__" not in p.parts
    )
    assert after == [p for p in before if "__pycache__" not in p.parts]


@pytest.mark.first
def test_a_rerun_measures_one_cell_and_keeps_the_old_attempt(again):
    """By make, which calls `rankbench rerun`, which calls Snakemake."""
    before = records_of(again.root)
    table = read_table(again.root, "small")
    makefile = Path(__file__).resolve().parents[2] / "Makefile"
    shutil.copy(makefile, again.root / "Makefile")
    # The environment that runs this test exists already.
    here = [f"BIN={Path(sys.executable).parent}", "INSTALLED="]
    given = [f"CELL={ONE}", "EXPERIMENT=experiment.yaml"]
    done = again.run(["make", "rerun", *given, *here])
    assert done.returncode == 0, done.stdout
    after = records_of(again.root)
    assert after.items() >= before.items()
    assert set(after) - set(before) == {f"{ONE}/2/1/record.json"}
    now = read_table(again.root, "small")
    assert now[ONE]["attempt"] == "2"
    assert now[ONE]["throughput"] != table[ONE]["throughput"]
    assert now[DDP]["throughput"] == table[DDP]["throughput"]


def test_a_dry_rerun_says_so_and_raises_nothing(again):
    requests = again.root / "results/small/requests"
    before = {p: p.read_bytes() for p in requests.iterdir()}
    done = again.snakemake("experiment=experiment.yaml", f"rerun={ONE}", flags=("-n",))
    assert done.returncode == 0
    assert "1 cell: 1 to measure" in done.stdout
    assert ONE in done.stdout
    assert {p: p.read_bytes() for p in requests.iterdir()} == before


def test_only_runs_a_part_and_the_rest_stays_in_the_table(project):
    project.experiment(SMALL)
    done = project.snakemake("experiment=experiment.yaml", "only=strategy=single")
    assert done.returncode == 0, done.stdout
    assert list(records_of(project.root)) == [f"{ONE}/1/1/record.json"]
    table = read_table(project.root, "small")
    assert len(table) == 5
    assert table[ONE]["status"] == "ok"
    assert table[DDP]["status"] == "not-run"


WANTS_A_VARIABLE = """
import os
from rankbench.rank.strategies.single import Single

class Wanting(Single):
    like = "single"

    def setup(self, *args, **kwargs):
        if os.environ.get("RB_MODE") != "fast":
            raise RuntimeError(f"RB_MODE is {os.environ.get('RB_MODE')}")
        return super().setup(*args, **kwargs)
"""


def test_ranks_have_the_variables_of_their_cell(project):
    project.add_strategy("wanting", WANTS_A_VARIABLE)
    project.experiment(
        "name: small\nstrategy: wanting\nmodel: lenet\nlaunches: 1\nsteps: 2\n"
        "warmup: 0\ngate: false\nenv: [{RB_MODE: fast}, {RB_MODE: slow}]\n"
    )
    done = project.snakemake()
    assert done.returncode == 0, done.stdout
    fast, slow = read_table(project.root, "small").values()
    assert fast["status"] == "ok", fast["reason"]
    assert slow["cell"].endswith(".RB_MODE=slow")
    assert slow["status"] == "crashed"
    assert "RB_MODE is slow" in slow["reason"]


def test_setup_of_the_site_comes_before_the_ranks_and_its_faults_are_reasons(project):
    project.add_strategy("wanting", WANTS_A_VARIABLE.replace("RB_MODE", "TORCH_MODE"))
    text = (
        "name: small\nstrategy: wanting\nmodel: lenet\nlaunches: 1\nsteps: 2\n"
        "warmup: 0\ngate: false\n"
    )
    site = project.root / "local_profile/site.yaml"
    before = site.read_text()
    site.write_text(f"{before}\nsetup: |\n  export TORCH_MODE=fast\n")
    project.measure(text)
    (row,) = read_table(project.root, "small").values()
    assert row["status"] == "ok", row["reason"]
    site.write_text(f"{before}\nsetup: |\n  module-x load cuda\n")
    project.experiment(text)
    project.snakemake("experiment=experiment.yaml", f"rerun={row['cell']}")
    site.write_text(before)
    (row,) = read_table(project.root, "small").values()
    assert row["status"] == "cancelled"
    assert (
        "setup in site.yaml failed: module-x load cuda: exit status 127"
        in (row["reason"])
    )


def test_profile_experiment_and_filter_on_one_command_line(project):
    """`--config` of the command line must not displace the site or the experiment."""
    project.experiment(SMALL.replace("name: small", "name: other"))
    site = project.root / "local_profile/site.yaml"
    site.write_text("devices_per_node: 1\nresults_dir: elsewhere\n")
    done = project.snakemake(
        "experiment=experiment.yaml", "only=strategy=ddp backend=gloo", flags=("-n",)
    )
    assert done.returncode == 0, done.stdout
    assert "1 cell: 0 to measure, 0 measured, 1 that cannot run here" in done.stdout
    assert "this site has 1" in done.stdout
    assert "elsewhere/other" in done.stdout or "table" in done.stdout


@pytest.mark.first
def test_plan_and_records_alone_give_the_table_byte_for_byte(measured, tmp_path):
    source = measured / "results/small"
    target = tmp_path / "elsewhere"
    shutil.copytree(source / "records", target / "records")
    shutil.copy(source / "plan.json", target)
    done = Project(measured).rankbench("table", str(target), "--no-plots")
    assert done.returncode == 0, done.stdout
    made = sorted(p.relative_to(target) for p in target.rglob("*") if p.is_file())
    made = [p for p in made if p.parts[0] != "records" and p.name != "plan.json"]
    assert {p.suffix for p in made} == {".csv", ".json", ".md", ".html", ".tex"}
    for path in made:
        assert (target / path).read_bytes() == (source / path).read_bytes(), path


@pytest.mark.first
def test_publish_writes_a_site_and_a_bundle_that_verifies(again):
    done = again.snakemake(flags=("publish",))
    assert done.returncode == 0, done.stdout
    results = again.root / "results/small"
    page = (results / "site/index.html").read_text()
    assert "<title>small - rankbench</title>" in page
    bundle = (results / "results.tar.zst").read_bytes()
    assert (results / "site/results.tar.zst").read_bytes() == bundle
    done = again.rankbench("verify", str(results / "results.tar.zst"))
    assert ": verified: its numbers were derived again" in done.stdout


def test_a_changed_default_makes_rows_stale_and_a_run_measures_them(again):
    schema = again.root / "workflow/schemas/experiment.schema.yaml"
    text = schema.read_text()
    assert "default: [0.01]" in text
    schema.write_text(text.replace("default: [0.01]", "default: [0.02]"))
    states = again.rankbench("status", "experiment.yaml").stdout
    assert f"stale          1/1  {DDP}" in states
    before = records_of(again.root)
    done = again.snakemake("only=strategy=single", "experiment=experiment.yaml")
    assert done.returncode == 0, done.stdout
    assert f"{ONE}  1 launch of 1 rank  (measured before the cell's" in done.stdout
    after = records_of(again.root)
    assert before.items() < after.items()
    table = read_table(again.root, "small")
    assert (table[ONE]["status"], table[ONE]["attempt"]) == ("ok", "2")
    assert (table[DDP]["status"], table[DDP]["throughput"]) == ("stale", "")


@pytest.fixture(scope="module")
def in_turns(
    tmp_path_factory: pytest.TempPathFactory, digits_file: Path
) -> Iterator[tuple[Project, str]]:
    """A project whose two cells were measured in three rounds, and what was printed."""
    made = with_data(tmp_path_factory.mktemp("turns"), digits_file)
    project = next(made)
    project.experiment(
        "name: small\nstrategy: [single, ddp]\nmodel: lenet\ngate: false\n"
        "launches: 3\nsteps: 2\nwarmup: 1\nlauncher: manual\n"
        "learning_rate: {per_sample: 0.0001}\n"
    )
    done = project.snakemake()
    assert done.returncode == 0, done.stdout
    yield project, done.stdout
    made.close()


def test_launches_of_cells_take_turns(in_turns):
    project, printed = in_turns
    rows = read_table(project.root, "small").values()
    # A row without a gate is marked, unless it is the reference of gates.
    states = {(row["strategy"], row["status"], row["marks"]) for row in rows}
    assert states == {("single", "ok", ""), ("ddp", "ok", "unchecked")}
    assert {row["ratios"] for row in rows} == {"", "paired"}
    assert not list(project.root.glob("results/small/records/*/*/gate"))
    ordered = sorted(records_in(project), key=lambda record: record["ended"])
    rounds = [record["round"] for record in ordered]
    assert [place["number"] for place in rounds] == [1, 1, 2, 2, 3, 3]
    assert [place["position"] for place in rounds] == [1, 2] * 3
    (seed,) = {place["seed"] for place in rounds}
    cells = sorted({record["cell_id"] for record in ordered})
    expected = [cell for number in (1, 2, 3) for cell in draw(cells, seed, number)]
    assert [record["cell_id"] for record in ordered] == expected
    # One job measured both cells; the log of each cell tells of its own launches.
    logs = (project.root / "results/small/work/logs").glob("*.1x1.*.log")
    assert [path.read_text().count("/3  launch ") for path in logs] == [3, 3]
    (log,) = (project.root / "results/small/work/logs").glob("this-machine.log")
    assert log.read_text().count("/3  launch ") == 6
    assert "5 launches left, about" in printed


def test_ranks_have_the_learning_rate_of_their_global_batch(in_turns):
    for record in records_in(in_turns[0]):
        rate = 0.0001 * record["shape"]["global_batch"]
        assert record["cell"]["learning_rate"] == pytest.approx(rate)


def test_a_variable_of_the_shell_that_half_of_the_launches_had_is_named(
    in_turns, tmp_path, monkeypatch
):
    root = shutil.copytree(in_turns[0].root, tmp_path / "copy", symlinks=True)
    project = Project(root.resolve())
    before = read_table(project.root, "small")
    (cell,) = (name for name, row in before.items() if row["strategy"] == "ddp")
    assert before[cell]["speedup"]
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    done = project.snakemake("experiment=experiment.yaml", f"more={cell}=6")
    assert done.returncode == 0, done.stdout
    row = read_table(project.root, "small")[cell]
    assert (row["status"], row["launches_ok"]) == ("ok", "6")
    assert "environment(NCCL_ALGO)" in row["marks"].split()
    # Half of its launches are like those of `single`, and half are not.
    assert row["speedup"] == ""
    table = (project.root / "results/small/table.md").read_text()
    assert "- **environment(NCCL_ALGO)**" in table


def test_the_answer_says_what_to_launch_next_and_run_does_it(in_turns, tmp_path):
    root = shutil.copytree(in_turns[0].root, tmp_path / "copy", symlinks=True)
    project = Project(root.resolve())
    options = ("experiment.yaml",)
    results = project.root / "results/small"
    asked = json.loads((results / "answer.json").read_text())["workloads"][0]["next"]
    (fastest,) = (one for one in asked if one["settles"] == "fastest")
    assert [(one["more"], one["launches"]) for one in fastest["cells"]] == [(1, 4)] * 2
    preview = project.rankbench("run", *options, "--next", "-n").stdout
    assert "2 cells: 2 to measure" in preview
    assert "2 launches, 2 processes" in preview
    before = records_of(project.root)
    done = project.rankbench("run", *options, "--next", "--no-plots")
    assert done.returncode == 0, done.stdout
    after = records_of(project.root)
    assert before.items() <= after.items()
    assert len(after) == 8
    for row in read_table(project.root, "small").values():
        assert (row["attempt"], row["launches_ok"], row["launches"]) == ("1", "4", "4")
        assert row["ratios"] in ("", "paired")
    # The launches are kept, and nothing is pending.
    again = project.snakemake("experiment=experiment.yaml")
    assert "Nothing to be done" in again.stdout


def records_in(project) -> list[dict]:
    return [json.loads(text) for text in records_of(project.root).values()]


def test_an_interrupted_round_is_completed_first(in_turns, tmp_path):
    """Also by a later run: the launches of one round can then be compared."""
    root = shutil.copytree(in_turns[0].root, tmp_path / "copy", symlinks=True)
    project = Project(root.resolve())
    # As if the run had ended within the second round.
    last = sorted(records_in(project), key=lambda record: record["ended"])[3:]
    results = project.root / "results/small"
    for record in last:
        shutil.rmtree(results / f"records/{record['cell_id']}/1/{record['launch']}")
    for path in results.glob("records/*/1/summary.json"):
        path.unlink()
    done = project.snakemake()
    assert done.returncode == 0, done.stdout
    rounds: dict[int, set] = {}
    for record in records_in(project):
        rounds.setdefault(record["round"]["number"], set()).add(record["cell_id"])
    assert sorted(rounds) == [1, 2, 3]
    assert {len(cells) for cells in rounds.values()} == {2}
    assert len({record["round"]["seed"] for record in records_in(project)}) == 1


@pytest.mark.long
def test_cells_are_measured_one_after_the_other_on_request(project):
    project.experiment(
        "name: small\nstrategy: [single, ddp]\nmodel: lenet\ngate: false\n"
        "launches: 2\nsteps: 2\nwarmup: 1\nlauncher: manual\norder: cells\n"
    )
    done = project.snakemake()
    assert done.returncode == 0, done.stdout
    ordered = sorted(records_in(project), key=lambda record: record["ended"])
    cells = [record["cell_id"] for record in ordered]
    assert cells[0] == cells[1] != cells[2] == cells[3]
    assert not any("round" in record for record in ordered)


def test_rows_of_a_rerun_base_are_unpaired_and_with_it_paired(project):
    project.experiment(
        "name: small\nstrategy: [single, ddp]\nmodel: lenet\ngate: false\n"
        "launches: 1\nsteps: 2\nwarmup: 1\nlauncher: manual\n"
    )
    assert project.snakemake().returncode == 0
    ddp, single = sorted(read_table(project.root, "small"))
    options = ("experiment.yaml",)
    done = project.rankbench("rerun", *options, single)
    assert done.returncode == 0
    assert f"as their base is: {ddp}" in done.stdout
    row = read_table(project.root, "small")[ddp]
    assert (row["attempt"], row["ratios"]) == ("1", "unpaired")
    done = project.rankbench("rerun", "--with-base", *options, ddp)
    assert done.returncode == 0, done.stdout
    table = read_table(project.root, "small")
    assert (table[ddp]["attempt"], table[ddp]["ratios"]) == ("2", "paired")
    assert table[single]["attempt"] == "3"


def test_the_budget_ends_rounds_and_a_larger_one_continues(project):
    text = (
        "name: small\nstrategy: [single, ddp]\nmodel: lenet\ngate: false\n"
        "launches: {}\nsteps: 2\nwarmup: 1\nlauncher: manual\ntime_limit: 60\n"
    )
    project.experiment(f"{text.format(1)}budget: 0.01 device-hours\n")
    refused = project.snakemake()
    assert refused.returncode != 0
    assert "budget: 0.01 device-hours: one round of 2 cells may take" in refused.stdout
    project.experiment(text.format(1))
    assert project.snakemake().returncode == 0
    spent = sum(record["seconds"]["launch"] for record in records_in(project)) / 3600
    # Usually one round; more if the one before was slow. But by far not all.
    project.experiment(f"{text.format(40)}budget: {1.05 * spent:.7f} device-hours\n")
    options = ("experiment.yaml",)
    again = ("rerun", *options, "--only", "strategy=single,ddp")
    done = project.rankbench(*again)
    assert done.returncode == 0, done.stdout
    table = read_table(project.root, "small")
    ended = {name: row["launches_ok"] for name, row in table.items()}
    for row in table.values():
        assert (row["status"], row["launches"]) == ("ok", "40")
        assert 1 <= int(row["launches_ok"]) < 40
        assert "budget" in row["marks"]
    assert project.rankbench("run", *options, "--no-plots").returncode == 0
    table = read_table(project.root, "small")
    assert {name: row["launches_ok"] for name, row in table.items()} == ended
    more = max(map(int, ended.values())) + 1
    project.experiment(f"{text.format(more)}budget: {50 * spent:.7f} device-hours\n")
    done = project.rankbench("run", *options, "--no-plots")
    assert done.returncode == 0, done.stdout
    table = read_table(project.root, "small").values()
    assert {(row["attempt"], row["launches_ok"]) for row in table} == {("2", str(more))}


def test_changed_rank_code_is_a_mark_not_a_rerun(again):
    before = records_of(again.root)
    code = again.root / "src/rankbench/rank/models/lenet.py"
    code.write_text(code.read_text() + "\n# changed\n")
    done = again.snakemake()
    assert done.returncode == 0, done.stdout
    assert records_of(again.root) == before
    row = read_table(again.root, "small")[ONE]
    assert row["status"] == "ok"
    assert "other-code" in row["marks"].split()


def test_launchers_measure_the_same_training(project):
    project.measure(
        "name: small\nstrategy: ddp\ntopology: 1x2\nmodel: lenet\n"
        "launcher: [torch_launch, manual]\ninit_method: [env, tcp, file]\n"
        "launches: 1\nsteps: 3\nevaluate: true\ngate: false\n"
    )
    rows = read_table(project.root, "small").values()
    refused = [row for row in rows if row["status"] == "unsupported"]
    assert len(refused) == 2
    assert all("needs the manual launcher" in row["reason"] for row in refused)
    measured = [row for row in rows if row["status"] == "ok"]
    records = [json.loads(text) for text in records_of(project.root).values()]
    started = [
        (record["cell"]["launcher"], record["cell"]["init_method"])
        for record in records
    ]
    assert sorted(started) == [
        ("manual", "env"),
        ("manual", "file"),
        ("manual", "tcp"),
        ("torch_launch", "env"),
    ]
    assert len(measured) == len(started), [row["reason"] for row in rows]
    # The same seed gives the same batches: the launcher must not change the training.
    first = records[0]["loss"]
    assert all(one["loss"] == pytest.approx(first, rel=1e-5) for one in records)
    (accuracy,) = {row["accuracy"] for row in measured}
    assert accuracy != ""


@pytest.mark.alone
def test_phases_agree_with_the_timers_of_ddp(project):
    project.measure(
        "name: small\nstrategy: ddp\ntopology: 1x2\nmodel: resnet18\n"
        "launcher: manual\n"
        "data: synthetic\nimage_size: 64\nchannels: 3\nbatch_size: 8\nlaunches: 1\n"
        "steps: 4\nwarmup: 8\ngate: false\n"
    )
    (path,) = (project.root / "results/small/records").glob("ddp*/1/1")
    record = read_record(path / "record.json")
    steps = np.load(path / "steps.npz")
    timers = [rank["details"]["ddp_timers"] for rank in record["ranks"]]
    theirs = {name: np.mean([own[name] for own in timers]) for name in timers[0]}
    # DDP times each of its first ten steps.
    (last,) = {own["iteration"] for own in timers}
    assert last <= 10
    taken = [
        np.concatenate([steps[f"rank{rank}/{part}"] for part in ("warmup", "seconds")])
        for rank in range(2)
    ]
    means = 1e3 * np.mean([own[:last].mean(axis=0) for own in taken], axis=0)
    ours = dict(zip(record["phases"], means, strict=True))
    for phase in ("forward", "backward"):
        assert theirs[f"{phase}_ms"] == pytest.approx(ours[phase], rel=0.1)
    # Both times end when the last gradient has arrived.
    exposed = theirs["communication_ms"] - theirs["overlap_ms"]
    step = ours["forward"] + ours["backward"]
    assert abs(ours["communication"] - exposed) < 0.1 * step


@pytest.mark.first
def test_the_command_line_lists_shows_and_tells_states(measured):
    project = Project(measured)
    given = ("experiment.yaml",)
    cells = project.rankbench("run", "-n", *given)
    assert cells.returncode == 0
    assert f"{ONE}\n" in cells.stdout
    status = project.rankbench("status", *given)
    assert status.returncode == 0, status.stdout
    assert f"ok             1/1  {DDP}" in status.stdout
    shown = project.rankbench("status", *given, DDP)
    assert re.search(r"attempt 1  launch 1  \S+ samples/s", shown.stdout)
    assert f"rankbench rerun experiment.yaml {DDP}" in shown.stdout
    wrong = project.rankbench("status", *given, DDP.replace("gloo", "glo"))
    assert wrong.returncode == 2
    assert f"did you mean '{DDP}'" in wrong.stdout


NET = """
from torch import nn

def build(channels, image_size, classes, act="relu"):
    print("act:", repr(act), flush=True)
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * image_size**2, classes))
"""


EVERY = {
    **{"name": "hostile", "strategy": "single", "launches": 1, "steps": 3},
    **{"warmup": 1, "gate": False},
}


def everything(project: Project) -> set[Path]:
    return set(project.root.rglob("*"))


def test_hostile_values_are_measured_as_they_are_written(project):
    """In a file and an option whose names no path, shell or Snakefile can hold."""
    values = make_values()[:200]
    (project.root / "my nets").mkdir()
    (project.root / "my nets/n #1 {x}.py").write_text(NET)

    def write(file: str, acts: list[str]) -> None:
        model = {"./my nets/n #1 {x}.py": {"act": acts}}
        text = json.dumps({**EVERY, "model": model}, ensure_ascii=False)
        project.experiment(text, file)

    write("run #2: {x}.yaml", values)
    before = everything(project)
    done = project.rankbench("run", "run #2: {x}.yaml", "-n")
    assert done.returncode == 0, done.stdout[-3000:]
    assert "200 cells: 200 to measure" in done.stdout
    hostile = "".join(PIECES)
    write("run #2: {x}.yaml", [hostile])
    done = project.rankbench("run", "run #2: {x}.yaml", "--no-plots")
    assert done.returncode == 0, done.stdout[-3000:]
    assert "Traceback" not in done.stdout
    (path,) = project.root.glob("results/hostile/records/*/1/1/record.json")
    record = json.loads(path.read_text())
    assert record["status"] == "ok"
    assert record["cell"]["model_options"]["act"] == hostile
    assert f"act: {hostile!r}" in path.with_name("rank0.log").read_text()
    new = {
        path.relative_to(project.root).parts[0] for path in before ^ everything(project)
    }
    assert new <= {"results", "logs", ".snakemake", "data", "src", "my nets"}
