"""The site file, and the facts found on the machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from factories import make_probe, read_pairs
from rankbench.matrix.site import Site, make_site, read_site

pytestmark = pytest.mark.unit

GPUS = {
    "cuda": "12.8",
    "cuda_devices": ["H100", "H100"],
    "backends": ["gloo", "nccl"],
    "cores": 16,
}


def site_of(folder: Path, text: str, **probe: Any) -> Site:
    path = folder / "site.yaml"
    path.write_text(text)
    return make_site(read_site(path), make_probe(**probe), source=path)


@pytest.mark.parametrize(
    ("text", "probe", "device", "cuda_devices", "cores"),
    [
        ("device: auto", {}, "cpu", 0, 2),
        ("device: auto", GPUS, "cuda", 2, 16),
        ("device: cpu", GPUS, "cpu", 2, 16),
        ("device: cuda", GPUS, "cuda", 2, 16),
        ("devices_per_node: 1", {}, "cpu", 0, 1),
        ("devices_per_node: 4", GPUS, "cuda", 4, 16),
        ("device: cpu\ndevices_per_node: 4", GPUS, "cpu", 2, 4),
    ],
)
def test_devices(tmp_path, text, probe, device, cuda_devices, cores):
    site = site_of(tmp_path, text, **probe)
    found = [site[key] for key in ("device", "cuda_devices", "cores")]
    assert found == [device, cuda_devices, cores]


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("nodes: 1", {"heartbeat_grace": 15, "device_hour_price": None}),
        ("nodes: 4\nresults_dir: out", {"nodes": 4, "results_dir": "out"}),
        ("data_dir: /data\ncores: 1", {"data_dir": "/data", "cores": 1}),
        ("heartbeat_grace: 60", {"heartbeat_grace": 60}),
        ("peak_tflops: {bf16: 989}", {"peak_tflops": {"bf16": 989}}),
        ("device_hour_price: 2.50 EUR", {"device_hour_price": "2.50 EUR"}),
        ("env: {FI_PROVIDER: efa, N: 4}", {"env": {"FI_PROVIDER": "efa", "N": "4"}}),
        ("binds: [/opt/efa]", {"binds": ["/opt/efa"]}),
    ],
)
def test_facts_of_the_file(tmp_path, text, facts):
    site = site_of(tmp_path, text)
    assert site.items() >= facts.items()
    assert site["native"]["torch"] == "2.9.0"


CLUSTER = "scheduler: slurm\nnodes: 8\ncores: 64\n"


def test_hosts_of_a_cluster_are_as_said_whatever_this_machine_has(tmp_path):
    gpus = f"{CLUSTER}device: cuda\ndevices_per_node: 4"
    site = site_of(tmp_path, gpus, backends=["gloo", "nccl"])
    assert (site["device"], site["cuda_devices"], site["cores"]) == ("cuda", 4, 64)
    assert site["native"]["backends"]["process_group"]["nccl"] is None
    site = site_of(tmp_path, f"{CLUSTER}device: cpu", **GPUS)
    assert (site["device"], site["cuda_devices"], site["cores"]) == ("cpu", 0, 64)


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("scheduler: slurm", "device, cores"),
        ("scheduler: slurm\ndevice: cpu", "cores"),
        ("scheduler: slurm\ncores: 8\ndevice: cuda", "devices_per_node"),
    ],
)
def test_hosts_of_a_cluster_must_be_described(tmp_path, text, missing):
    with pytest.raises(
        ValueError, match=f"yaml:1: scheduler: slurm: the file must set {missing}, "
    ):
        site_of(tmp_path, text, **GPUS)


@pytest.mark.parametrize(
    ("backend", "probe", "reason"),
    [
        ("gloo", {}, None),
        ("gloo", {"backends": []}, "this torch (2.9.0) has no GLOO: install"),
        ("mpi", {}, "this torch (2.9.0) has no MPI: build torch with MPI"),
        ("mpi", {"backends": ["mpi"]}, None),
        ("nccl", {}, "needs a CUDA device; this torch (2.9.0) is built without CUDA"),
        ("nccl", {**GPUS, "cuda_devices": []}, "this machine has none that torch sees"),
        ("nccl", {**GPUS, "backends": ["gloo"]}, "has no NCCL: install a CUDA build"),
        ("nccl", GPUS, None),
        ("ccl", GPUS, "oneCCL bindings are no longer made"),
    ],
)
def test_backends(tmp_path, backend, probe, reason):
    site = site_of(tmp_path, "nodes: 1", **probe)
    found = site["native"]["backends"]["process_group"][backend]
    if reason is None:
        assert found is None
    else:
        assert reason in str(found)


@pytest.mark.parametrize(("text", "complaint"), read_pairs("refused_sites.txt"))
def test_refused(tmp_path, text, complaint):
    path = tmp_path / "site.yaml"
    with pytest.raises(ValueError, match=rf"^{path}:(1:)? {complaint}"):
        site_of(tmp_path, text)


def test_profiles_of_the_project_are_good():
    root = Path(__file__).resolve().parents[2]
    found = list(root.glob("*_profile/site.yaml"))
    assert found
    for path in found:
        facts = read_site(path)
        assert make_site(facts, make_probe(**GPUS), source=path)["nodes"] >= 1


def test_other_options_of_sbatch_are_passed_on(tmp_path):
    path = tmp_path / "site.yaml"
    path.write_text("sbatch: {constraint: a100, nodelist: a, time-min: 5, wait: 1}\n")
    assert list(read_site(path)["sbatch"]) == [
        *("constraint", "nodelist", "time-min", "wait")
    ]
