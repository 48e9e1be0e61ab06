"""How the campaign plants the faults of docs/troubleshooting.md."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import faulty_strategies as faulty
from lanes import RANK, SCRATCH, SUPERVISOR, TORCHRUN
from pretend_cluster import daemon_environment
from pretend_host import Host, PretendError, check, wait_until
from trials import OK, Trial, fault

UNFINISHED = ("cancelled", "its supervisor")


@fault(("crashed", "rank 1: RuntimeError: the disk of the moon is full"))
def exception(trial: Trial) -> None:
    """A rank raises an exception"""
    trial.begin(faulty.RAISES)


@fault(("crashed", "rank 1 was ended by SIGKILL"))
def rank_killed(trial: Trial) -> None:
    """A rank of another host is killed"""
    trial.launcher = "torchrun"
    trial.begin_and_train()
    trial.lane.kill(trial.lane.far, RANK)


@fault(("timeout", "time limit of 15 s reached: rank 0 in"))
def hangs(trial: Trial) -> None:
    """A rank hangs"""
    trial.limit = 15
    trial.begin(faulty.HANG)


@fault(OK)
def dies_parting(trial: Trial) -> None:
    """A rank crashes after all ranks have reported"""
    trial.begin(faulty.DIES_PARTING)


@fault(("oom", "at the memory limit of the job"))
def memory(trial: Trial) -> None:
    """The job's memory limit"""
    trial.begin(faulty.GREEDY)


@fault(("crashed", "torchrun on the host {near} was ended by SIGKILL"))
def launcher_killed(trial: Trial) -> None:
    """The launcher is killed"""
    trial.launcher = "torchrun"
    trial.begin_and_train()
    trial.lane.kill(trial.lane.near, f"^{sys.executable} .*{TORCHRUN}")


@fault(("cancelled", "in use"), OK)
def port(trial: Trial) -> None:
    """A port is in use"""
    # A file in the launch's own folder would not be seen by the launch after it.
    flag = trial.lane.root / "port-was-taken"
    flag.unlink(missing_ok=True)
    place = "os.path.join(os.environ['TMPDIR'], 'port-was-taken')"
    assert place in faulty.PORT_TAKEN_ONCE
    trial.begin(faulty.PORT_TAKEN_ONCE.replace(place, repr(str(flag))))


@fault(*[("cancelled", "the host {far} cannot resolve {near}")] * 3, after=[OK])
def unknown_name(trial: Trial) -> None:
    """A host does not know the name of another"""
    lane = trial.lane
    trial.spares_others = trial.allocation != "topology"
    known = (lane.cluster.state / "etc/hosts").read_text().splitlines(keepends=True)
    fewer = lane.root / "fewer-hosts"
    near = f" {lane.near.name}\n"
    fewer.write_text("".join(line for line in known if not line.endswith(near)))
    with mounted(lane.far, "/etc/hosts", "--bind", fewer):
        trial.begin(pace=0)
        trial.end()


@fault(("cancelled", ""), after=[OK])
def interrupted(trial: Trial) -> None:
    """Ctrl-C"""
    trial.begin_and_train()
    trial.signal(signal.SIGINT)


@fault(OK)
def snakemake_killed(trial: Trial) -> None:
    """Snakemake is killed, and its jobs go on"""
    trial.begin_and_train()
    trial.signal(signal.SIGKILL)
    trial.end()
    # The jobs go on, and the next run waits for them.
    trial.next_run()


@fault(after=[UNFINISHED, OK])
def supervisor_killed(trial: Trial) -> None:
    """The supervisor is killed"""
    trial.begin_and_train()
    trial.lane.kill(trial.lane.near, SUPERVISOR)


@fault(after=[UNFINISHED, OK])
def rendezvous(trial: Trial) -> None:
    """An earlier launch left a rendezvous file"""
    trial.launcher, trial.more = "manual", "    init_method: file"
    trial.begin_and_train()
    trial.lane.kill(trial.lane.near, SUPERVISOR)


@fault(("cancelled", "HeartbeatLost"), after=[OK])
def heartbeat(trial: Trial) -> None:
    """The supervisor stands still for 25 s"""
    trial.begin_and_train()
    trial.lane.kill(trial.lane.near, SUPERVISOR, "STOP")
    try:
        time.sleep(25)
    finally:
        trial.lane.kill(trial.lane.near, SUPERVISOR, "CONT")


@fault(after=[UNFINISHED, OK])
def disk_full(trial: Trial) -> None:
    """The disk is full"""
    trial.begin_and_train()
    filler = trial.lane.project.root / "results/filler"
    with open(filler, "wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass
    try:
        trial.lane.set_pace(0)
        trial.end()
    finally:
        filler.unlink()


@fault(("cancelled", "scratch of the host {far}"), after=[OK], either=True)
def scratch_full(trial: Trial) -> None:
    """The scratch folder of a host is full"""
    with small_scratch(trial.lane.far, "2m") as far:
        far.do("sh", "-c", f"head -c 8M /dev/zero >{SCRATCH}/filler || true")
        trial.begin(pace=0)
        trial.end()


@fault(("cancelled", "No space left on device (on the host {far}"), after=[OK])
def scratch_filled(trial: Trial) -> None:
    """A rank fills the scratch folder"""
    with small_scratch(trial.lane.far, "4m"):
        trial.begin(faulty.SPILLS)
        trial.end()


@fault(("cancelled", "time limit of the Slurm job reached"), after=[OK])
def time_limit(trial: Trial) -> None:
    """The job's time limit"""
    trial.begin_and_train()
    order = ("scontrol", "update", f"JobId={job_of(trial)}", "EndTime=now")
    trial.lane.cluster.run(*order)


@fault(("cancelled", "its Slurm job was cancelled"), after=[OK])
def scancel(trial: Trial) -> None:
    """scancel"""
    trial.begin_and_train()
    trial.lane.cluster.run("scancel", job_of(trial))


@fault(("cancelled", "the host {far} failed"), after=[OK])
def host_crash(trial: Trial) -> None:
    """A host fails"""
    trial.begin_and_train()
    trial.lane.far.crash()
    try:
        trial.wait_for_record()
    finally:
        trial.lane.revive(trial.lane.far)


@fault(("cancelled", "the host {far} failed"), after=[OK])
def link_cut(trial: Trial) -> None:
    """The link of a host is cut"""
    trial.begin_and_train()
    trial.lane.far.cut()
    try:
        trial.wait_for_record()
    finally:
        trial.lane.far.mend()
        trial.lane.restart_slurmd(trial.lane.far)


@fault(("cancelled", "the host {far} failed"), after=[OK])
def slurmd_stopped(trial: Trial) -> None:
    """A host's slurmd does not answer"""
    trial.begin_and_train()
    trial.lane.cluster.stop(trial.lane.far.name)
    try:
        trial.wait_for_record()
    finally:
        trial.lane.restart_slurmd(trial.lane.far)


@fault(OK, alone=True)
def controller(trial: Trial) -> None:
    """Slurm's controller does not answer for 35 s"""
    cluster = trial.lane.cluster
    trial.begin_and_train()
    check(["pkill", "--exact", "slurmctld"])
    # Longer than MessageTimeout, for which Slurm's clients try again; not longer than
    # SlurmdTimeout, after which it would take its hosts for lost.
    time.sleep(35)
    # Lanes are partitions that slurm.conf does not know.
    check(["slurmctld", "-R"], daemon_environment(cluster.state))
    wait_until(lambda: answers(trial), "the controller answers")
    trial.lane.set_pace(0)


def answers(trial: Trial) -> bool:
    try:
        trial.lane.jobs()
    except PretendError:
        return False
    return True


@fault(OK)
def second_run(trial: Trial) -> None:
    """A second run in the same directory"""
    trial.begin_and_train()
    second = trial.lane.run(trial.name, said="second")
    said = trial.lane.wait_for(second, said="second")
    assert second.returncode == 1, said
    assert f"results/{trial.name} is in use by process " in said, said
    trial.lane.set_pace(0)


@fault(OK)
def two_directories(trial: Trial) -> None:
    """Two runs in different directories take turns"""
    lane = trial.lane
    trial.begin_and_train()
    text = (lane.project.root / f"{trial.name}.yaml").read_text()
    other = f"{trial.name}-other"
    lane.project.experiment(text.replace(trial.name, other, 1), f"{other}.yaml")
    second = lane.run(other, said="second")
    lane.set_pace(0)
    said = lane.wait_for(second, said="second")
    assert second.returncode == 0, said
    trial.end()
    for host in lane.hosts:
        spans = []
        for launch in (*lane.launches(trial.name), *lane.launches(other)):
            record = json.loads((launch / "record.json").read_text())
            if host.name in record["launcher"]["hosts"]:
                begun = (launch / "claim.json").stat().st_mtime
                spans.append((begun, (launch / "record.json").stat().st_mtime))
        spans.sort()
        for (_, end), (begin, _) in itertools.pairwise(spans):
            assert end <= begin, spans


@fault(OK)
def damaged_data(trial: Trial) -> None:
    """A data file is damaged"""
    file = trial.lane.project.root / "data/digits.npz"
    good = file.read_bytes()
    damaged = bytearray(good)
    damaged[len(damaged) // 2] ^= 0xFF
    file.write_bytes(damaged)
    try:
        trial.begin(pace=0)
        trial.end()
    finally:
        file.write_bytes(good)


@fault(after=[OK])
def missing_data(trial: Trial) -> None:
    """A data file cannot be prepared"""
    file = trial.lane.project.root / "data/digits.npz"
    aside = file.rename(trial.lane.root / "digits.npz")
    file.parent.chmod(0o555)
    try:
        trial.begin(pace=0)
        trial.end()
    finally:
        # Snakemake removes a folder that holds nothing but missing outputs.
        file.parent.mkdir(exist_ok=True)
        file.parent.chmod(0o755)
        shutil.move(aside, file)
    row = trial.row()
    assert row["status"] == "not-run", row
    assert "data digits could not be prepared" in row["reason"]


@fault(after=[OK])
def image_not_built(trial: Trial) -> None:
    """An image cannot be built"""
    lane = trial.lane
    use_images(trial)
    trial.facts += "debian_mirror: http://localhost:1/mirror\n"
    recipe = lane.project.root / "containers/gloo.def"
    before = recipe.read_text()
    recipe.write_text(f"{before}# changed\n")
    try:
        trial.begin(pace=0)
        trial.end()
    finally:
        recipe.write_text(before)
    row = trial.row()
    assert row["status"] == "not-run", row
    assert "image gloo-cpu could not be built" in row["reason"]


@fault(*[("cancelled", "the image does not start on the host {far}")] * 3, after=[OK])
def image_gone(trial: Trial) -> None:
    """The image is not there on a host"""
    use_images(trial)
    trial.spares_others = trial.allocation != "topology"
    nothing = trial.lane.root / "no-images"
    nothing.mkdir(exist_ok=True)
    with mounted(trial.lane.far, str(trial.lane.images), "--bind", nothing):
        trial.begin(pace=0)
        trial.end()


@fault(after=[OK])
def mistakes(trial: Trial) -> None:
    """An experiment with mistakes"""
    trial.more = "    strategyy: ddp"
    trial.begin(pace=0)
    trial.end()
    words = "unknown key 'strategyy'; did you mean 'strategy'?"
    assert words in trial.said, trial.said
    assert not (trial.lane.project.root / "results" / trial.name).exists()
    file = trial.lane.project.root / f"{trial.name}.yaml"
    file.write_text(file.read_text().replace(trial.more, ""))


def use_images(trial: Trial) -> None:
    """Let the cells run in images: the other one in that of MPI."""
    lane = trial.lane
    trial.facts = (
        f"software: container\nimage_dir: {lane.images}\nbinds: [{lane.root}]\n"
    )
    trial.beside = "    image: mpi"


def job_of(trial: Trial) -> str:
    """The job in which the launch runs: no other runs in the lane."""
    (job,) = (line.split()[0] for line in trial.lane.jobs() if " RUNNING " in line)
    return job


@contextmanager
def mounted(host: Host, place: str, *how: str | Path) -> Iterator[None]:
    """A host on which something else is mounted at a place."""
    host.do("mount", *how, place)
    try:
        yield
    finally:
        host.do("umount", "--lazy", place)


@contextmanager
def small_scratch(host: Host, size: str) -> Iterator[Host]:
    """A host whose scratch folder is small."""
    how = ("-t", "tmpfs", "-o", f"size={size},mode=1777", "tmpfs")
    with mounted(host, SCRATCH, *how):
        yield host
