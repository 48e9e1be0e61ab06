"""The matrix that a cluster has to carry, each cell in its image, by Snakemake."""

from __future__ import annotations

from pathlib import Path

import pytest
from logins import table_of
from site_files import with_images

# Other tests start these strategies, and images over hosts.
pytestmark = [pytest.mark.cluster, pytest.mark.long]

MATRIX = Path(__file__).with_name("matrix.yaml")
# Cells with several ranks per host; the others are in test_launchers_in_images.py.
CHOSEN = "strategy=zero1,gpipe,rpc_pmp,fsdp backend=gloo,tensorpipe topology=2x2"


def test_part_of_the_matrix_in_its_images(site, images, profile, snakemake):
    # Other tests run gates over hosts and in images.
    site.project.experiment(MATRIX.read_text() + "gate: false\n", MATRIX.name)
    (profile / "site.yaml").write_text(with_images(images))
    snakemake("--config", f"experiment={MATRIX.name}", f"only={CHOSEN}")
    table = table_of(site, "matrix")
    chosen = {
        cell: row
        for cell, row in table.items()
        if row["strategy"] in ("zero1", "gpipe", "rpc_pmp", "fsdp")
        and row["backend"] in ("gloo", "tensorpipe")
        and row["topology"] == "2x2"
    }
    assert len(chosen) == 4
    assert {row["status"] for row in chosen.values()} == {"ok"}, chosen
    assert all("oversubscribed" in row["marks"] for row in chosen.values())
    for row in (row for cell, row in table.items() if cell not in chosen):
        assert row["status"] in ("not-run", "unsupported")
        assert row["reason"]
    records = site.records("matrix")
    assert records.keys() == chosen.keys()
    for (record,) in records.values():
        assert record["image"]["name"] == "gloo-cpu"
        hosts = [rank["host"] for rank in record["ranks"]]
        assert hosts == [host for host in record["launcher"]["hosts"] for _ in range(2)]
