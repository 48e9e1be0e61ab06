"""What goes wrong gets a typed status or a clear message, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import faulty_strategies
import pytest
from pretend_host import wait_until

from conftest import Project
from evidence import read_record, read_table, trains
from rankbench.launch.process.evidence import last_error_line

pytestmark = pytest.mark.integration

EXPERIMENT = """
name: faults
strategy: [{strategy}]
topology: 1x2
model: lenet
launches: {launches}
steps: {steps}
warmup: 0
time_limit: {limit}
launcher: {launcher}
gate: false
"""


# `manual` starts fastest; the other launchers are tested where it matters who starts
# the ranks.
USUAL = "manual"

# Faults that need no action from outside; one run has them all.
ALONE = """
name: faults
topology: 1x2
model: lenet
launches: 1
steps: 6
warmup: 0
time_limit: 60
gate: false
blocks:
  - strategy: [killed, raises]
    launcher: [torchrun, spawn, manual]
  - strategy: [parts_badly, dies_parting, hungry_later, port_taken_once]
    launcher: manual
"""


def prepare(
    project, strategy: str, *, launches=1, steps=6, limit=60, launcher=USUAL
) -> str:
    """Add a faulty strategy and an experiment with it; returns the id of its cell."""
    project.add_strategy(strategy, getattr(faulty_strategies, strategy.upper()))
    project.experiment(
        EXPERIMENT.format(
            strategy=strategy,
            launches=launches,
            steps=steps,
            limit=limit,
            launcher=launcher,
        )
    )
    return cell_of(strategy, launcher)


def cell_of(strategy: str, launcher: str = USUAL) -> str:
    suffix = "" if launcher == "torchrun" else f".launcher={launcher}"
    return f"{strategy}.gloo.1x2.lenet.digits{suffix}"


def row_of(project, cell: str) -> dict[str, str]:
    return read_table(project.root, "faults")[cell]


def launches_of(project, cell: str) -> dict[int, dict]:
    folder = project.root / f"results/faults/records/{cell}/1"
    return {
        int(path.parent.name): read_record(path)
        for path in sorted(folder.glob("*/record.json"))
    }


def in_training(project, cell: str, number: int = 1) -> bool:
    """Whether both ranks of a launch have entered the timed window."""
    launch = project.root / f"results/faults/records/{cell}/1/{number}"
    return trains(launch)


@pytest.fixture(scope="module")
def alone(shared_project: Project) -> tuple[Project, str]:
    """A project in which `ALONE` was run, and what was said."""
    kinds = ("killed", "raises", "parts_badly", "dies_parting", "hungry_later")
    for name in (*kinds, "port_taken_once"):
        shared_project.add_strategy(name, getattr(faulty_strategies, name.upper()))
    shared_project.experiment(ALONE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(shared_project.root))
        done = shared_project.snakemake()
    assert done.returncode == 0, done.stdout
    assert not shared_project.processes("rankbench.rank")
    shared_project.wait_until_gone()
    return shared_project, done.stdout


@pytest.mark.parametrize("launcher", ["torchrun", "spawn", "manual"])
@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        ("killed", "rank 1 was ended by SIGKILL"),
        ("raises", "rank 1: RuntimeError: the disk of the moon is full"),
    ],
)
def test_a_rank_that_dies(alone, launcher, strategy, words):
    project, said = alone
    cell = cell_of(strategy, launcher)
    row = row_of(project, cell)
    assert row["status"] == "crashed"
    assert words in row["reason"]
    assert row["throughput"] == ""
    assert f"{cell}  crashed" in said


def test_ranks_that_part_badly_have_measured_all_the_same(alone):
    project, _ = alone
    cell = cell_of("parts_badly")
    row = row_of(project, cell)
    assert row["status"] == "ok", row["reason"]
    log = project.root / f"results/faults/records/{cell}/1/1/rank0.log"
    assert "while leaving the other ranks: Connection closed" in log.read_text()


def test_a_rank_that_crashes_while_parting_has_measured_all_the_same(alone):
    project, _ = alone
    cell = cell_of("dies_parting")
    row = row_of(project, cell)
    assert (row["status"], row["launches_ok"]) == ("ok", "1")
    assert "unclean-end" in row["marks"].split()
    assert float(row["throughput"]) > 0
    (record,) = launches_of(project, cell).values()
    crash = "after the reports of all ranks: rank 1 was ended by SIGSEGV; "
    assert record["parting"].startswith(crash)
    table = (project.root / "results/faults/table.md").read_text()
    assert "**unclean-end**: a launch hung or crashed" in table


def test_a_taken_port_is_tried_again(alone):
    project, _ = alone
    cell = cell_of("port_taken_once")
    found = launches_of(project, cell)
    assert [r["status"] for r in found.values()] == ["cancelled", "ok"]
    assert found[1]["cause"] == "host"
    assert row_of(project, cell)["status"] == "ok"


@pytest.mark.alone
def test_a_rank_that_hangs(project):
    cell = prepare(project, "hang", limit=20)
    done = project.snakemake()
    assert done.returncode == 0, done.stdout
    row = row_of(project, cell)
    assert row["status"] == "timeout"
    assert "time limit of 20 s reached" in row["reason"]
    assert "rank 1 in training, step 2" in row["reason"]
    assert not project.processes("rankbench.rank")
    project.wait_until_gone()


def test_a_rank_out_of_memory(project):
    cell = prepare(project, "hungry")
    command = ["bash", "-c", 'ulimit -v 67108864; exec "$@"', "bash", *project.argv()]
    done = project.run(command)
    assert done.returncode == 0, done.stdout
    row = row_of(project, cell)
    assert row["status"] == "oom", row["reason"]
    assert "rank 1" in row["reason"]
    assert not project.processes("rankbench.rank")
    project.wait_until_gone()


def test_memory_that_lacks_after_the_window_discards_nothing(alone):
    project, _ = alone
    cell = cell_of("hungry_later")
    (record,) = launches_of(project, cell).values()
    assert record["status"] == "ok"
    assert "memory" in record["parting"]
    assert record["marks"] == ["unclean-end"]
    assert float(row_of(project, cell)["throughput"]) > 0


def test_an_attempt_that_only_fails_is_given_up(project):
    cell = prepare(project, "raises", launches=6)
    done = project.snakemake()
    assert done.returncode == 0, done.stdout
    assert sorted(launches_of(project, cell)) == [1, 2]
    row = row_of(project, cell)
    assert (row["launches_ok"], row["launches"]) == ("0", "6")
    again = project.snakemake()
    assert "Nothing to be done" in again.stdout


def test_a_port_taken_by_another_process_before_rank_0(project):
    cell = prepare(project, "slow")
    parent = project.root / "src/rankbench/rank/world/places.py"
    chosen = project.root / "chosen-port"
    head = "def find_free_port(host: str = LOOPBACK) -> int:\n"
    first = (
        f"    first = Path({str(chosen)!r})\n"
        "    if first.exists():\n"
        "        port = int(first.read_text())\n"
        "        first.unlink()\n"
        "        return port\n"
    )
    assert head in parent.read_text()
    parent.write_text(parent.read_text().replace(head, head + first))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        chosen.write_text(str(taken.getsockname()[1]))
        done = project.snakemake()
    assert done.returncode == 0, done.stdout
    found = launches_of(project, cell)
    assert [(r["status"], r["cause"]) for r in found.values()] == [
        ("cancelled", "host"),
        ("ok", None),
    ]
    assert row_of(project, cell)["status"] == "ok"


def test_what_is_left_of_an_earlier_rendezvous(project):
    """Ranks that are started by hand must not meet the remains of others."""
    work = project.root / "work"
    work.mkdir()
    (work / "rendezvous").touch()
    spec = work / "launch.json"
    module = [sys.executable, "-m", "rankbench.rank.world.manual"]
    done = project.run([*module, "--ranks=2", "--init-method=file", str(spec)])
    assert done.returncode == 1
    said = f"ValueError: {work}/rendezvous is left from an earlier launch: remove it"
    assert last_error_line(done.stdout) == said


def test_the_launcher_is_killed(project):
    cell = prepare(project, "slow", steps=2000, limit=600, launcher="torchrun")
    with project.start() as run:
        wait_until(lambda: in_training(project, cell), "training")
        (launcher,) = project.processes("torch.distributed.run")
        launcher.kill()
        output, _ = run.communicate(timeout=600)
    assert run.returncode == 0, output
    row = row_of(project, cell)
    assert row["status"] == "crashed"
    assert row["reason"].startswith("torchrun was ended by SIGKILL")
    assert not project.processes("rankbench.rank")
    project.wait_until_gone()


def test_the_supervisor_is_killed(project):
    """Ranks notice that the heartbeat has stopped; the next run measures anew."""
    cell = prepare(project, "hang", limit=600)
    with project.start() as run:
        wait_until(lambda: in_training(project, cell), "training")
        (supervisor,) = project.processes("rankbench.launch")
        supervisor.kill()
        output, _ = run.communicate(timeout=600)
    assert run.returncode == 1, output
    project.wait_until_gone()
    project.add_strategy("hang", faulty_strategies.HANG.replace("10_000", "0"))
    done = project.snakemake()
    assert done.returncode == 0, done.stdout
    assert "launch 1 was left unfinished" in done.stdout
    found = launches_of(project, cell)
    assert [r["status"] for r in found.values()] == ["cancelled", "ok"]
    assert row_of(project, cell)["status"] == "ok"


def test_snakemake_is_killed_and_the_next_run_continues(project):
    cell = prepare(project, "slow", launches=3, steps=24)
    with project.start() as run:
        wait_until(lambda: in_training(project, cell, 2), "second launch")
        run.kill()
        run.wait()
    project.wait_until_gone()
    kept = {n: r for n, r in launches_of(project, cell).items() if r["status"] == "ok"}
    assert list(kept) == [1]
    project.add_strategy("slow", faulty_strategies.SLOW.replace("0.25", "0"))
    done = project.snakemake()
    assert done.returncode == 0, done.stdout
    found = launches_of(project, cell)
    assert found[1] == kept[1]
    states = [r["status"] for r in found.values()]
    assert states == ["ok", "cancelled", "ok", "ok"]
    row = row_of(project, cell)
    assert (row["status"], row["launches_ok"], row["launches"]) == ("ok", "3", "3")
    again = project.snakemake()
    assert "Nothing to be done" in again.stdout


def test_a_live_run_refuses_a_second_one(project):
    cell = prepare(project, "slow", steps=2000, limit=600)
    with project.start() as run:
        wait_until(lambda: in_training(project, cell), "training")
        second = project.snakemake()
        assert second.returncode == 1
        assert "results/faults is in use by process" in second.stdout
        assert str(run.pid) in second.stdout
        dry = project.snakemake(flags=("-n",))
        assert dry.returncode == 0, "a dry run may look at any time"
        os.killpg(run.pid, signal.SIGINT)
        run.communicate(timeout=600)


def test_two_measurements_never_overlap(project):
    """Also two experiments in two directories take turns on the machine."""
    cell = prepare(project, "slow", steps=2000, limit=600)
    text = (project.root / "experiment.yaml").read_text().replace("2000", "2")
    project.experiment(text.replace("name: faults", "name: second"), "second.yaml")
    log = project.root / f"results/second/work/logs/{cell}.log"
    words = "another measurement runs on this machine"
    with project.start() as first:
        wait_until(lambda: in_training(project, cell), "training")
        with project.start("experiment=second.yaml") as second:
            wait_until(lambda: log.exists() and words in log.read_text(), words)
            os.killpg(first.pid, signal.SIGINT)
            said = [run.communicate(timeout=600)[0] for run in (first, second)]
    assert second.returncode == 0, said
    places = [
        project.root / f"results/{name}/records/{cell}/1/1"
        for name in ("faults", "second")
    ]
    end = (places[0] / "record.json").stat().st_mtime
    assert end <= (places[1] / "claim.json").stat().st_mtime


@pytest.fixture
def small_disk(project):
    """The results on a file system of 8 MiB, of which the frozen code takes some."""
    if os.getuid() != 0:
        pytest.skip("mounting a small file system needs root")
    disk = project.root / "results"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"mount: {done.stderr.strip()}")
    yield disk
    project.kill_everything()
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_the_disk_is_full_when_a_record_is_written(project, small_disk):
    cell = prepare(project, "slow", launches=2, steps=24)
    filler = small_disk / "filler"
    with project.start() as run:
        wait_until(lambda: in_training(project, cell, 2), "second launch")
        first = launches_of(project, cell)[1]
        with open(filler, "wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                pass
        output, _ = run.communicate(timeout=600)
    assert run.returncode == 1
    assert f"{cell}  not measured: " in output, output
    assert "No space left on device" in output
    assert launches_of(project, cell) == {1: first}
    filler.unlink()
    done = project.snakemake()
    assert done.returncode == 0, done.stdout
    found = launches_of(project, cell)
    states = [r["status"] for r in found.values()]
    reasons = [r["reason"] for r in found.values()]
    assert states == ["ok", "cancelled", "ok"], reasons
    assert found[1] == first


def test_data_that_are_damaged(project):
    project.experiment("name: faults\nstrategy: single\nlaunches: 1\nsteps: 2\n")
    file = project.root / "data/digits.npz"
    good = file.read_bytes()
    damaged = bytearray(good)
    damaged[len(damaged) // 2] ^= 0xFF
    file.write_bytes(damaged)
    done = project.snakemake()
    assert done.returncode == 0, done.stdout
    assert row_of(project, "single.none.1x1.convnet.digits")["status"] == "ok"
    assert file.read_bytes() == good


def test_data_that_cannot_be_had_stop_their_cells_only(project):
    (project.root / "data").chmod(0o755)
    project.experiment(
        "name: faults\nstrategy: single\nmodel: lenet\ndata: [mnist, digits]\n"
        "launches: 1\nsteps: 2\n"
    )
    # A download needs a folder, and this is a file.
    (project.root / "data/raw").write_text("in the way")
    done = project.snakemake()
    assert done.returncode == 1, done.stdout
    assert "mnist" in done.stdout
    assert row_of(project, "single.none.1x1.lenet.digits")["status"] == "ok"
    missing = row_of(project, "single.none.1x1.lenet.mnist")
    assert missing["status"] == "not-run"
    assert missing["reason"].startswith("data mnist could not be prepared: mnist ")
    assert missing["reason"].endswith("; log: logs/prepare/mnist.log")
    said = project.rankbench("status", "experiment.yaml").stdout
    assert "data mnist could not be prepared: " in said


@pytest.mark.first
@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            "experiment=experiment.yaml",
            "experiment.yaml:2: unknown key 'strategyy'; did you mean 'strategy'?",
        ),
        (
            "rerun=ddp.nccl.1x2.convnet.digits.batch_size=32.launcher=manual",
            "cannot run here: nccl needs a CUDA",
        ),
    ],
)
def test_bad_input_is_refused_before_anything_starts(project, config, said):
    project.experiment("name: x\nstrategyy: ddp\n")
    done = project.snakemake(config)
    assert done.returncode == 1
    assert said in done.stdout
    assert "Traceback" not in done.stdout
    assert not (project.root / "results").exists()
