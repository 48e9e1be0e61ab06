"""Opening, locking and running an experiment on disk."""

from __future__ import annotations

import errno
import fcntl
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from factories import make_probe, make_record, make_site, read_plan_of
from rankbench.cell import safe_name
from rankbench.failures import DATA, PLAN_VARIABLE, Need
from rankbench.launch.hosts.slurm import SlurmJob
from rankbench.launch.job.claim import make_request
from rankbench.project import run as run_module
from rankbench.project import start
from rankbench.project.jobs import find_pending, jobs_of, resources_of, with_setup
from rankbench.project.preview import Preview
from rankbench.project.run import Run, open_run, reopen_run, take_results
from rankbench.project.start import begin, check_scheduler
from rankbench.project.status import find_verdict
from rankbench.record import Layout, read_json, write_if_changed, write_json

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs begin in a folder of their own, and leave the variables as they are."""
    monkeypatch.setenv(PLAN_VARIABLE, "unset")
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(
        run_module, "probe_machine", lambda programs, write: make_probe()
    )
    (tmp_path / "e.yaml").write_text(
        "name: some\nstrategy: [single, ddp]\ntopology: [1x1, 1x2]\nlaunches: 3\n"
        "overrides: {small: {topology: 1x1, launches: 2}}\n"
    )
    (tmp_path / "site.yaml").write_text(f"results_dir: {tmp_path}/results\n")
    config = {"experiment": tmp_path / "e.yaml"}
    return open_run(config, profile=tmp_path, write=False)


def test_results_on_a_file_system_without_locks(opened, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(ValueError, match=r"lock: .*no locks .*results_dir in"):
        take_results(opened.layout)


def test_opening_writes_nothing(opened):
    assert not opened.layout.root.exists()
    assert {lack.launches for lack in find_pending(opened).values()} == {3}
    assert find_pending(opened).keys() == opened.plan.cells.keys()


def test_a_job_finds_the_plan_that_was_written_and_requests_are_made_once(opened):
    begin(opened)
    again = reopen_run()
    assert again.plan == opened.plan
    assert again.layout == opened.layout
    before = {p: p.read_bytes() for p in opened.layout.root.rglob("requests/*")}
    assert len(before) == 4
    opened.lock.close()
    begin(opened)
    after = {p: p.read_bytes() for p in opened.layout.root.rglob("requests/*")}
    assert after == before


def test_a_run_forgets_why_an_earlier_one_could_not_prepare(opened):
    failed = Need(DATA, "digits").file(opened.layout)
    other = Need(DATA, "mnist").file(opened.layout)
    failed.parent.mkdir(parents=True)
    for file in (failed, other):
        file.write_text("{}")
    begin(opened)
    assert (failed.exists(), other.exists()) == (False, True)


def test_a_gate_that_was_made_is_not_counted_again(opened):
    begin(opened)
    assert sum(lack.beside for lack in find_pending(opened).values()) == 2
    for cell in opened.feasible:
        gate = opened.layout.attempt(cell.id, 1) / "gate/1/record.json"
        write_json(gate, make_record(cell_hash=cell.hash))
    opened.forget()
    preview = Preview(opened)
    assert sum(preview.pending.values()) == 12
    assert all(lack.total == lack.launches for lack in preview.lacks.values())


def test_fewer_launches_may_do_later(opened, tmp_path):
    begin(opened)
    opened.lock.close()
    for cell in opened.feasible:
        place = opened.layout.launch(cell.id, 1, 1) / "record.json"
        write_json(place, make_record(cell_hash=cell.hash))
    config = {"experiment": tmp_path / "e.yaml"}
    text = config["experiment"].read_text().replace("launches: 3", "launches: {}", 1)
    for launches, left in ((2, 1), (1, 0)):
        config["experiment"].write_text(text.replace("{}", str(launches)))
        run = open_run(config, profile=tmp_path, write=False)
        assert {lack.launches for lack in find_pending(run).values()} == {left}
        begin(run)
        run.lock.close()
        asked = {read_json(run.layout.request(c))["launches"] for c in run.plan.cells}
        assert asked == {launches}
    (verdict, *_) = (find_verdict(run.plan, run.layout, c) for c in run.feasible)
    assert (verdict.status, verdict.wanted) == ("ok", 1)


def test_a_second_run_is_refused_and_told_by_whom(opened, tmp_path):
    begin(opened)
    config = {"experiment": tmp_path / "e.yaml"}
    with pytest.raises(ValueError, match=r"is in use by process \d+ on "):
        begin(open_run(config, profile=tmp_path, write=False))


def test_images_are_made_where_slurm_does_not_answer(opened, monkeypatch, capsys):
    def find_jobs(*_: object) -> None:
        raise ValueError("squeue is not here")

    monkeypatch.setattr(start, "find_jobs", find_jobs)
    begin(opened, measures=False)
    said = capsys.readouterr().err
    assert "squeue is not here; this run submits no job, so it goes on" in said
    assert opened.layout.plan.exists()
    opened.lock.close()
    with pytest.raises(ValueError, match="squeue is not here"):
        begin(opened)


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"rerun": "single.none.1x1.convnet.digit"}, "did you mean 'single.none.1x1"),
        ({"rerun": "single.none.1x1.convnet.digits", "only": "a=b"}, "not both"),
        ({"more": "single.none.1x1.convnet.digit=9"}, "did you mean 'single.none.1x1"),
        ({"more": "single.none.1x1.convnet.digits"}, "expected CELL=N"),
        ({"more": "a=9", "only": "a=b"}, "only and more: give one of them"),
        ({"launches": 3}, "--config launches: unknown key"),
        ({"experimnt": "e.yaml"}, "unknown key; did you mean 'experiment'"),
        ({"only": "strategie=ddp"}, "key 'strategie'; did you mean 'strategy'"),
        ({"plots": "maybe"}, "plots: expected true or false, not 'maybe'"),
        ({"override": "smal"}, "override 'smal': .*did you mean 'small'"),
    ],
)
def test_bad_configuration_is_refused(opened, tmp_path, config, complaint):
    given = {"experiment": tmp_path / "e.yaml", **config}
    with pytest.raises(ValueError, match=complaint):
        open_run(given, profile=tmp_path, write=False)


def test_several_cells_can_be_measured_again_at_once(opened, tmp_path):
    ids = ["single.none.1x1.convnet.digits", "ddp.gloo.1x2.convnet.digits"]
    config = {"experiment": tmp_path / "e.yaml", "rerun": ", ".join(ids)}
    run = open_run(config, profile=tmp_path, write=False)
    assert list(find_pending(run)) == ids
    begin(run)
    verdicts = {find_verdict(run.plan, run.layout, cell) for cell in run.chosen}
    assert {(v.status, v.ok, v.wanted) for v in verdicts if v} == {("not-run", 0, 3)}


def test_more_launches_of_a_cell_and_an_override(opened, tmp_path):
    config = {
        "experiment": tmp_path / "e.yaml",
        "more": "single.none.1x1.convnet.digits=9",
    }
    run = open_run(config, profile=tmp_path, write=False)
    assert find_pending(run)["single.none.1x1.convnet.digits"].launches == 9
    assert "  single.none.1x1.convnet.digits  9 launches of 1 rank" in (
        Preview(run).lines()
    )
    config = {"experiment": tmp_path / "e.yaml", "override": "small"}
    run = open_run(config, profile=tmp_path, write=False)
    assert run.layout.root == opened.layout.root.with_name("some-small")
    assert {lack.launches for lack in find_pending(run).values()} == {2}
    assert {cell.cell.topology for cell in run.chosen} == {"1x1"}


def share(folder: Path, keys: str, **site: object) -> Run:
    """A run of three cells on a cluster, which share a job unless `keys` says else."""
    text = (
        "name: some\nstrategy: [single, ddp]\ntopology: [1x1, 2x1]\nlaunches: 4\n"
        f"gate: false\ntime_limit: 60\n{keys}\n"
    )
    facts = {"scheduler": "slurm", "nodes": 2, **site}
    plan = read_plan_of(folder, text, make_site(**facts))
    return Run(plan, Layout(folder / "results"), list(plan.cells.values()))


def test_cells_share_jobs_as_the_experiment_says(tmp_path):
    text = "launcher: [srun, job_array]\ninit_method: [env, file]\nallocation: "
    found = {
        allocation: Preview(share(tmp_path, text + allocation))
        for allocation in ("topology", "experiment")
    }
    arrays = [c for c in found["topology"].chosen if c.cell.launcher == "job_array"]
    apart = {c.id for c in arrays if c.infeasible is None}
    assert apart
    assert set(found["topology"].jobs) == {"1x1", "2x1"} | apart
    assert set(found["experiment"].jobs) == {"experiment"} | apart
    assert found["experiment"].jobs["experiment"]["nodes"] == 2
    assert {*found["topology"].apart} == {*found["experiment"].apart} == apart
    # A cell of one host waits with two in the job that all share; no array is in it.
    held = found["experiment"].held
    ranks = {c.id: c.shape.ranks for c in found["experiment"].chosen}
    beside = sum(ranks[cell] for cell in apart)
    shared = found["experiment"].pending.keys() - apart
    own = beside + sum(ranks[cell] for cell in shared)
    launches = 4 * 60 / 3600  # of a cell
    assert held["cell"] == pytest.approx(launches * own)
    assert held["experiment"] == pytest.approx(launches * (beside + 2 * len(shared)))
    (line,) = (one for one in found["experiment"].lines() if "by allocation" in one)
    assert line.endswith(f"experiment {held['experiment']:.3g}")
    alone = Preview(share(tmp_path, "allocation: cell"))
    assert set(alone.jobs) == set(alone.pending)
    assert (alone.apart, alone.held) == ([], {})
    # Launches that are added take turns, so that they can be compared.
    added = share(tmp_path, "allocation: cell")
    added.more = dict.fromkeys(list(alone.pending)[:2], 8)
    assert set(jobs_of(added)) == {"experiment"}


@pytest.mark.parametrize(
    ("minutes", "parts", "longest"),
    [
        # Three cells of four launches of a minute, and three minutes beside them.
        (None, 1, 15),
        (15, 1, 15),
        # Three rounds would fit, but two parts of two rounds wait less in the queue.
        (14, 2, 9),
        (12, 2, 9),
        (7, 4, 6),
    ],
)
def test_a_shared_job_is_split_so_that_none_is_too_long(
    tmp_path, minutes, parts, longest
):
    run = share(tmp_path, "allocation: experiment", max_job_minutes=minutes)
    jobs = Preview(run).jobs
    assert len(jobs) == parts
    assert {job["minutes"] for job in jobs.values()} == {longest}
    names = ["experiment"]
    if parts > 1:
        names = [f"experiment.{number + 1}" for number in range(parts)]
    assert list(jobs) == names


def test_jobs_of_one_cell_are_split_likewise(tmp_path):
    """Two launches of a minute and three minutes beside them fit into five."""
    run = share(tmp_path, "allocation: cell", max_job_minutes=5)
    found = Preview(run).jobs
    assert {job["minutes"] for job in found.values()} == {5}
    first = next(iter(run.plan.cells))
    assert list(found)[:2] == [f"{first}.1", f"{first}.2"]
    assert len(found) == 2 * len(run.feasible)


@pytest.mark.parametrize(
    ("limits", "minutes"),
    [
        ({None: 14, "long": 99}, 15),
        ({None: 15}, None),
        ({None: math.inf}, None),
        ({}, None),
    ],
)
def test_a_job_that_its_partition_does_not_allow_is_named(
    tmp_path, monkeypatch, capsys, limits, minutes
):
    monkeypatch.setattr(start, "find_jobs", lambda *_: {})
    monkeypatch.setattr(SlurmJob, "limits", lambda: limits)
    run = share(tmp_path, "allocation: experiment")
    preview = Preview(run)
    begin(run)
    run.lock.close()
    told = capsys.readouterr().err
    if minutes is None:
        assert preview.too_long is None
        assert "max_job_minutes" not in told
        return
    assert f"may take {minutes} minutes" in str(preview.too_long)
    assert any("set max_job_minutes: 14" in line for line in preview.lines())
    assert "set max_job_minutes: 14" in told


@pytest.mark.parametrize(
    ("site", "limit"), [("a", None), ("b", 14), ("a,b", None), ("b,c", 14)]
)
def test_a_site_may_name_several_partitions(tmp_path, monkeypatch, site, limit):
    limits = {"a": math.inf, "b": 14}
    monkeypatch.setattr(SlurmJob, "limits", lambda: limits)
    run = share(tmp_path, "allocation: experiment", partition=site)
    said = Preview(run).too_long
    assert said is None if limit is None else f"the partition {site} allows 14" in said


def test_cells_of_different_partitions_are_in_different_jobs(tmp_path, monkeypatch):
    monkeypatch.setattr(SlurmJob, "limits", lambda: {"a": 99, "b": 4, "c": 99})
    for allocation, names in (
        ("experiment", ["experiment", "b.experiment"]),
        ("topology", ["1x1", "b.1x1", "2x1", "b.2x1"]),
    ):
        text = f"allocation: {allocation}\npartition: [null, b]"
        run = share(tmp_path, text, partition="a")
        assert sorted(jobs_of(run)) == sorted(names)
        for name in names:
            asked = resources_of(run, name)["slurm_partition"]
            assert asked == ("b" if name.startswith("b.") else "a")
            own = {
                run.plan.cells[cell].cell.partition for cell in jobs_of(run)[name].cells
            }
            assert own == {"b" if name.startswith("b.") else None}
        assert "the partition b allows 4" in Preview(run).too_long


def test_jobs_of_hosts_and_other_wishes(tmp_path):
    run = share(tmp_path, "allocation: experiment\nconstraint: [null, 'a&b']\nqos: q")
    assert sorted(jobs_of(run)) == [f"q.{safe_name('a&b')}.experiment", "q.experiment"]
    asked = [resources_of(run, name) for name in sorted(jobs_of(run))]
    assert {one["qos"] for one in asked} == {"q"}
    assert "'--constraint=a&b'" in str(asked[0]["sbatch"])
    assert "constraint" not in str(asked[1]["sbatch"])


def test_what_is_missing_is_requested(tmp_path):
    """One cell of three, one launch of four."""
    run = share(tmp_path, "allocation: experiment")
    whole = resources_of(run, "experiment")["runtime"]
    run.forget()
    for cell in run.feasible:
        facts = {"launches": 4, "launches_ok": 4, "cell_hash": cell.hash}
        make_request(run.layout, cell.id, launches=4, cell_hash=cell.hash)
        if cell is not run.feasible[0]:
            write_json(run.layout.summary(cell.id, 1), {**facts, "enough": None})
            continue
        for launch in (1, 2, 3):
            facts = {"image": None, "seconds": {"launch": 10.0}}
            record = make_record(launch=launch, cell_hash=cell.hash, **facts)
            write_json(run.layout.launch(cell.id, 1, launch) / "record.json", record)
    preview = Preview(run)
    assert preview.pending == {run.feasible[0].id: 1}
    assert resources_of(run, "experiment")["runtime"] == 4 < whole


def test_a_folder_that_python_cannot_have_on_its_path(tmp_path):
    (tmp_path / "a:b").mkdir()
    run = share(tmp_path / "a:b", "allocation: experiment")
    with pytest.raises(ValueError, match="a folder with ':' in its name: rename it"):
        begin(run)


def test_a_partition_that_slurm_does_not_have(opened, tmp_path, monkeypatch):
    (tmp_path / "site.yaml").write_text("scheduler: slurm\ncores: 1\ndevice: cpu\n")
    text = "name: p\nstrategy: ddp\npartition: [cpu, gpux]\n"
    (tmp_path / "p.yaml").write_text(text)
    config = {"experiment": tmp_path / "p.yaml"}
    monkeypatch.setattr(SlurmJob, "limits", lambda: {None: 1, "cpu": 1, "gpu": 1})
    with pytest.raises(ValueError, match=r"p.yaml: partition: 'gpux' .* 'gpu'\?"):
        open_run(config, profile=tmp_path, write=False)
    # Slurm does not answer.
    monkeypatch.setattr(SlurmJob, "limits", dict)
    assert len(open_run(config, profile=tmp_path, write=False).chosen) == 2


def test_a_user_within_an_allocation_is_told_that_it_idles(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    run = share(tmp_path, "allocation: experiment")
    begin(run, measures=False)
    run.lock.close()
    assert "within the Slurm job 4711" in capsys.readouterr().err


def test_a_job_knows_its_cells_its_rounds_and_what_comes_before(tmp_path):
    run = share(tmp_path, "allocation: experiment", max_job_minutes=14)
    begin(run, measures=False)
    run.lock.close()
    jobs = read_json(run.layout.agenda)["jobs"]
    assert [job["rounds"] for job in jobs.values()] == [2, 2]
    assert [job["after"] for job in jobs.values()] == [None, "experiment.1"]
    assert [job["cells"] for job in jobs.values()] == [
        [cell.id for cell in run.feasible]
    ] * 2


def test_known_seconds_of_launches_make_jobs_longer_or_shorter(tmp_path):
    run = share(tmp_path, "allocation: experiment", max_job_minutes=14)
    for cell in run.feasible:
        # A launch of an earlier attempt than the one that is wanted.
        record = make_record(seconds={"launch": 2.0})
        write_json(run.layout.launch(cell.id, 1, 1) / "record.json", record)
        asked = {"attempt": 2, "launches": 4, "cell_hash": cell.hash}
        write_json(run.layout.request(cell.id), asked)
    assert list(Preview(run).jobs) == ["experiment"]


@pytest.mark.parametrize(
    ("keys", "minutes", "complaint"),
    [
        (
            "allocation: experiment",
            5,
            r"^max_job_minutes: 5: .*the job experiment may take 6 .* site file",
        ),
        (
            "allocation: experiment\nbudget: 0.06 device-hours",
            None,
            r"^budget: 0.06 .* cells may take 0.0667 \(3 were never .*: raise budget",
        ),
    ],
)
def test_one_round_must_fit(tmp_path, keys, minutes, complaint):
    run = share(tmp_path, keys, max_job_minutes=minutes)
    with pytest.raises(ValueError, match=complaint):
        Preview(run)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("true", "None"),
        ("no-such-module cuda\nfalse", "no-such-module cuda: exit status 127"),
        ("if false; then x; fi; [ -d / ] || x", "None"),
    ],
)
def test_setup_of_the_site_runs_before_a_job(opened, tmp_path, line, fault):
    text = "'it is {a}, \\'"
    opened.plan.site["setup"] = f"export WORD={text}\n{line}"
    show = (
        "import os, sys; from rankbench.environ import read_setup_fault;"
        "print(os.environ['WORD'], sys.argv[1:], read_setup_fault(), sep='|')"
    )
    command = with_setup(opened, [sys.executable, "-c", show, "a b"])
    done = subprocess.run([*command, "c"], capture_output=True, text=True, check=True)
    assert done.stdout == f"it is {{a}}, \\|['a b', 'c']|{fault}\n"
    opened.plan.site["setup"] = None
    assert with_setup(opened, ["x"]) == ["x"]


def test_a_cluster_does_not_measure_into_the_results_of_a_laptop(tmp_path):
    cluster = share(tmp_path, "allocation: cell")
    text = "name: some\nstrategy: single\n"
    laptop = read_plan_of(tmp_path, text, make_site())
    check_scheduler(cluster)  # Nothing was run yet.
    write_if_changed(cluster.layout.plan, laptop.to_json())
    check_scheduler(cluster)  # Nothing was measured.
    cluster.layout.records.mkdir()
    with pytest.raises(ValueError, match=r"scheduler: none, and this one has slurm"):
        check_scheduler(cluster)
    write_if_changed(cluster.layout.plan, cluster.plan.to_json())
    check_scheduler(cluster)
