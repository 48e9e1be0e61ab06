"""`rankbench init --slurm`: what Slurm says becomes a site file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT
from rankbench.launch.site import partitions
from rankbench.launch.site.partitions import (
    Partition,
    choose_partition,
    parse_partitions,
)
from rankbench.matrix.site import read_site
from rankbench.schema import parse_yaml

pytestmark = pytest.mark.unit

# As Slurm 22.05 and 24.11 print them, without the fields that nobody reads.
PARTITIONS = """\
PartitionName=batch AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL \
Default=YES Hidden=NO MaxNodes=UNLIMITED MaxTime=2-00:00:00 MaxCPUsPerNode=UNLIMITED \
Nodes=c[1-4] RootOnly=NO State=UP TotalCPUs=512 TotalNodes=4 MaxMemPerNode=UNLIMITED
PartitionName=gpu AllowGroups=ALL AllowAccounts=physics,ml DenyQos= AllowQos=normal \
Default=NO MaxNodes=2 MaxTime=1-00:00:00 MaxCPUsPerNode=UNLIMITED State=UP \
MaxMemPerCPU=4000 TRES=cpu=1280,mem=6T,node=5,gres/gpu=16
PartitionName=theirs AllowGroups=staff,wheel AllowAccounts=ALL Default=NO State=UP
PartitionName=paid AllowGroups=ALL AllowAccounts=chemistry Default=NO State=UP
PartitionName=closed AllowGroups=ALL Default=NO MaxTime=UNLIMITED State=DRAIN
PartitionName=broken AllowGroups=ALL Default=NO MaxTime=UNLIMITED State=UP
"""
_GPU_HOST = (
    "CPUTot=256 CoresPerSocket=64 RealMemory=1031000 Sockets=2 ThreadsPerCore=2 "
    "MemSpecLimit=7000 CoreSpecCount=2 Partitions=gpu,paid"
)
HOSTS = f"""\
NodeName=c1 Arch=x86_64 CoresPerSocket=32 CPUTot=128 Gres=(null) OS=Linux 6.1.0 #1 SMP \
RealMemory=257000 Sockets=2 State=IDLE ThreadsPerCore=2 Partitions=batch,closed
NodeName=c2 CoresPerSocket=32 Gres=(null) RealMemory=257000 Sockets=2 \
State=MIXED+RESERVED ThreadsPerCore=2 Partitions=batch Comment=State=DOWN Sockets=99
NodeName=c3 CoresPerSocket=48 Gres=nvme:1 RealMemory=512000 Sockets=2 State=ALLOCATED \
ThreadsPerCore=2 Partitions=batch
NodeName=c4 CoresPerSocket=32 RealMemory=257000 Sockets=2 State=DOWN*+DRAIN Partitions=\
batch,broken Reason=disk is full [root@2026-11-20T10:00:00]
NodeName=g1 Gres=gpu:a100-sxm4-80gb:4(S:0-7),nvme:1 State=IDLE {_GPU_HOST}
NodeName=g2 Gres=gpu:a100-sxm4-80gb:4(S:0-7) State=IDLE {_GPU_HOST}
NodeName=g3 Gres=gpu:a100-sxm4-80gb:3 State=IDLE+CLOUD+POWERED_DOWN {_GPU_HOST}
NodeName=g4 Gres=gpu:3090:8,shard:64 State=IDLE {_GPU_HOST}
NodeName=g5 Gres=gpu:h100:8 State=IDLE+DRAIN {_GPU_HOST}
NodeName=g6 Gres=gpu:h100:8 State=INVAL {_GPU_HOST}
"""


def read(accounts: tuple[str, ...] = ("ml", "default")) -> dict[str, Partition]:
    found = parse_partitions(PARTITIONS, HOSTS, groups=["users"], accounts=accounts)
    return {partition.name: partition for partition in found}


@pytest.mark.parametrize("name", [None, "jdoe"])
def test_a_user_without_a_name_has_no_accounts(monkeypatch, name):
    def find_name() -> str:
        if name is None:
            raise OSError("No username set in the environment")
        return name

    def answer(program: str, *words: str) -> str:
        assert program == "scontrol" or "user=jdoe" in words
        of = {"partition": PARTITIONS, "node": HOSTS, "format=account": "ml\n"}
        return of[words[-1]]

    monkeypatch.setattr("getpass.getuser", find_name)
    monkeypatch.setattr(partitions, "ask_slurm", answer)
    monkeypatch.setattr(partitions, "try_slurm", answer)
    found = {one.name: one for one in partitions.ask_partitions()}
    # Only of a user with a name is it known that the account may not use it.
    assert (found["paid"].why_not is None) == (name is None)


FACTS = """
batch:
  facts: {partition: batch, device: cpu, devices_per_node: auto, gres: gpu, nodes: 3,
    cores: 64, memory: 257000, max_job_minutes: 2880}
  notes: {nodes: 1 more is down, cores: the least of all hosts; others have 96,
    memory: the least of all hosts; others have 512000}
  said: 'batch: hosts 3, each with 64 cores, 257000 MiB, no GPU; jobs of at most 2880
    minutes'
# Of several types of GPUs, the most frequent one counts. Slurm and its daemons keep two
# cores and 7000 MiB. The partition allows fewer hosts than there are.
gpu:
  facts: {partition: gpu, device: cuda, devices_per_node: 3, account: ml, nodes: 2,
    gres: 'gpu:a100-sxm4-80gb', cores: 126, memory: 1024000, max_job_minutes: 1440}
  notes: {gres: 'other hosts have gpu:3090', nodes: 2 more are down,
    devices_per_node: the least of all hosts; others have 4}
  said: 'gpu: hosts 2, each with 126 cores, 1024000 MiB, 3 gpu:a100-sxm4-80gb; jobs of
    at most 1440 minutes'
"""


@pytest.mark.parametrize(("name", "wanted"), parse_yaml(FACTS, "facts").items())
def test_facts_of_a_partition(name, wanted):
    found = read()[name]
    assert found.facts == wanted["facts"]
    assert found.notes == wanted["notes"]
    assert found.describe() == wanted["said"]
    assert "account" not in read(accounts=())[name].facts


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("theirs", "you are in none of its groups (AllowGroups=staff, wheel)"),
        ("paid", "you have none of its accounts (AllowAccounts=chemistry)"),
        ("closed", "its state is DRAIN"),
        ("broken", "none of its hosts is up"),
    ],
)
def test_partitions_that_cannot_be_used_say_why(name, why):
    found = list(read().values())
    said = re.escape(f"partition {name}: {why} (usable: batch, gpu)")
    with pytest.raises(ValueError, match=f"^{said}$"):
        choose_partition(found, name)
    assert choose_partition(found, None).name == "batch"
    refused = [partition for partition in found if partition.why_not]
    with pytest.raises(ValueError, match="no partition of this cluster can be used"):
        choose_partition(refused, None)
    with pytest.raises(ValueError, match=r"gpus: no such partition \(usable: batch"):
        choose_partition(found, "gpus")


@pytest.mark.parametrize(
    ("limit", "minutes"), [("UNLIMITED", None), ("00:30:00", 30), ("7-00:00:00", 10080)]
)
@pytest.mark.parametrize("cpus", ["UNLIMITED", "64"])
def test_limits_of_the_partition(limit, minutes, cpus):
    line = f"PartitionName=p State=UP MaxTime={limit} MaxCPUsPerNode={cpus}"
    host = "NodeName=a Sockets=2 CoresPerSocket=32 ThreadsPerCore=2 RealMemory=1000 "
    (found,) = parse_partitions(
        f"{line} MaxMemPerNode=900\n",
        f"{host} State=IDLE Partitions=p\n",
        groups=[],
        accounts=[],
    )
    assert found.facts["max_job_minutes"] == minutes
    assert found.facts["cores"] == (64 if cpus == "UNLIMITED" else 32)
    assert found.facts["memory"] == 900


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on PATH with a scontrol that prints the texts above."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in (("partition", PARTITIONS), ("node", HOSTS)):
        (tools / name).write_text(text)
    script = f'#!/bin/sh\nwhile IFS= read -r l; do echo "$l"; done < "{tools}/$4"\n'
    (tools / "scontrol").write_text(script)
    (tools / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tools))
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return tools


def facts_of(file: str) -> dict[str, Any]:
    facts = read_site(Path(file))
    asked = ("partition", "nodes", "device", "devices_per_node", "cores", "gres")
    return {key: facts[key] for key in (*asked, "interface", "software")}


def test_a_profile_is_written_and_a_former_one_is_kept(slurm, cli):
    said = cli("init", "--slurm", "gpu", "--site", "mine")
    assert "* gpu: hosts 2" in said.out
    assert "  closed: not usable: its state is DRAIN" in said.out
    assert "`rankbench check --site mine`" in said.out
    assert said.err == "wrote mine/config.yaml\nwrote mine/site.yaml\n"
    assert facts_of("mine/site.yaml") == {
        "partition": "gpu",
        "nodes": 2,
        "device": "cuda",
        "devices_per_node": 3,
        "cores": 126,
        "gres": "gpu:a100-sxm4-80gb",
        "interface": None,
        "software": "container",
    }
    file = Path("mine/site.yaml")
    text = file.read_text().replace("software: container", "software: native")
    file.write_text(text)
    before = file.read_text()
    said = json.loads(cli("init", "--slurm", "--site", "mine", "--json").out)
    assert said["files"] == ["mine/site.yaml", "mine/site.yaml.old"]
    assert Path("mine/site.yaml.old").read_text() == before
    # Keys that Slurm knows nothing of stay as they were.
    assert facts_of("mine/site.yaml")["software"] == "native"
    assert facts_of("mine/site.yaml")["partition"] == "batch"
    after = file.read_text()
    assert "remove one of them" in cli("init", "--slurm", "--site=mine", status=2).err
    assert file.read_text() == after


def test_a_new_project_has_the_facts_of_the_cluster(slurm, cli):
    cli("init", "bench", "--slurm")
    assert Path("bench/config.yaml").exists()
    assert not list(Path("bench").rglob("*.old"))
    # Only lines of keys that Slurm knows have changed.
    asset = (ROOT / "slurm_profile/site.yaml").read_text().splitlines()
    text = Path("bench/slurm_profile/site.yaml").read_text().splitlines()
    assert len(text) == len(asset)
    assert "cores: 64  # the least of all hosts; others have 96" in text


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (None, "scontrol is not here: run this where Slurm's commands are"),
        ("echo details >&2; echo no controller >&2; exit 1", "fails: no controller\n"),
        ("exit 0", "no partition of this cluster can be used: Slurm lists none"),
    ],
)
def test_without_slurm_nothing_is_written(slurm, cli, script, said):
    (slurm / "scontrol").unlink()
    if script is not None:
        (slurm / "scontrol").write_text(f"#!/bin/sh\n{script}\n")
        (slurm / "scontrol").chmod(0o755)
    assert said in cli("init", "bench", "--slurm", status=2).err
    assert not list(Path().iterdir())


@pytest.mark.parametrize(
    "words", [(), ("--ssh", "a"), ("--site", "mine"), ("a", "--site", "b")]
)
def test_options_that_go_together(tmp_path, monkeypatch, cli, words):
    monkeypatch.chdir(tmp_path)
    said = cli("init", *words, status=2).err
    assert "name a folder" in said or "--site needs --slurm" in said
    assert not list(tmp_path.iterdir())
