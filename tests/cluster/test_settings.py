"""One experiment over what people vary on a cluster, and what its rows say of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from allocations import Site
from logins import Snakemake
from site_files import with_images

pytestmark = [pytest.mark.cluster, pytest.mark.long]

# Partition -> its only host.
HOSTS = {"near": "node1", "far": "node2"}
VARIABLES = "GLOO_DEVICE_TRANSPORT=TCP OMP_WAIT_POLICY=PASSIVE"
TORCH = {"wheels": "2.13.0+cpu", "debian": "2.6.0+debian"}

EXPERIMENT = """
name: settings
strategy: ddp
model: lenet
images:
  wheels: {{file: {folder}/gloo-cpu.sif}}
  debian: {{file: {folder}/mpi-cpu.sif}}
image: [wheels, debian]
env: [{{}}, {{GLOO_DEVICE_TRANSPORT: TCP, OMP_WAIT_POLICY: PASSIVE}}]
partition: [near, far]
allocation: experiment
launches: 1
steps: 3
warmup: 1
gate: false
collectives: false
time_limit: 200
"""


@pytest.fixture(scope="module")
def partitions(site: Site) -> Iterator[None]:
    for name, host in HOSTS.items():
        made = (f"PartitionName={name}", f"Nodes={host}", "State=UP")
        site.cluster.administer("scontrol", "create", *made)
    yield
    for name in HOSTS:
        site.cluster.administer("scontrol", "delete", f"PartitionName={name}")


@pytest.mark.usefixtures("partitions")
def test_rows_say_in_which_settings_they_differ(
    site: Site, images, profile, snakemake: Snakemake
):
    (profile / "site.yaml").write_text(with_images(images) + "sbatch: {nice: 7}\n")
    text = EXPERIMENT.format(folder=images)
    site.project.experiment(text.replace("far", "fra"), "wrong.yaml")
    said = snakemake("--config", "experiment=wrong.yaml", status=1)
    assert "wrong.yaml: partition: 'fra' is not one of far, near, pretend" in said

    site.project.experiment(text, "settings.yaml")
    snakemake("--config", "experiment=settings.yaml")
    table = site.table("settings")
    assert {row["status"] for row in table.values()} == {"ok"}, table
    kept = ("partition", "image", "env", "torch")
    assert sorted(tuple(row[key] for key in kept) for row in table.values()) == sorted(
        (partition, image, env, torch)
        for partition in HOSTS
        for image, torch in TORCH.items()
        for env in ("", VARIABLES)
    )
    written = (site.project.root / "results/settings/table.md").read_text()
    for word in (*HOSTS, *TORCH, *TORCH.values(), *VARIABLES.split()):
        assert word in written

    jobs: dict[str, set[str]] = {}
    for cell, (record,) in site.records("settings").items():
        row = table[cell]
        assert record["launcher"]["hosts"] == [HOSTS[row["partition"]]]
        assert record["image"]["name"] == row["image"]
        given = record["launcher"]["env"].items()
        is_set = {word for word in VARIABLES.split() if tuple(word.split("=")) in given}
        assert is_set == set(row["env"].split())
        jobs.setdefault(row["partition"], set()).add(record["job_id"])
    assert [len(found) for found in jobs.values()] == [1, 1]
    for partition, (number,) in jobs.items():
        known = site.cluster.run("scontrol", "show", "job", number)
        assert f"Partition={partition}" in known
        assert "Nice=7" in known
