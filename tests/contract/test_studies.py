"""Every file of studies/: it plans here and in full, and its source is all there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from factories import make_site
from rankbench.matrix.catalog import load_catalog
from rankbench.matrix.experiment import load_experiment
from rankbench.matrix.plan import make_plan
from rankbench.matrix.site import Site
from rankbench.plan import Plan
from rankbench.schema import load_yaml

pytestmark = pytest.mark.contract

ROOT = Path(__file__).resolve().parents[2]
STUDIES = sorted(ROOT.glob("studies/*.yaml"))
DOCS = (ROOT / "docs/experiments.md").read_text()
OVERRIDE = "laptop"

each_study = pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)


def plan(path: Path, override: str | None, site: Site) -> Plan:
    experiment = load_experiment(path, load_catalog(), cuda=False, override=override)
    return make_plan(
        experiment, site, load_catalog(), code=lambda _: "c0de", source=path.name
    )


def published_labels(path: Path) -> list[str]:
    """As they stand in the file, by a reader of its own."""
    labels = []
    for block in load_yaml(path)["blocks"]:
        rows = block.get("published", [])
        labels += [row["label"] for row in (rows if isinstance(rows, list) else [rows])]
    return labels


def collect_keys(value: Any) -> set[str]:
    """Keys of a file, but the names of overrides and of strategies' options."""
    keys = set(value)
    for key, inner in value.items():
        nested = inner if isinstance(inner, list) else [inner]
        if key == "overrides":
            nested = list(inner.values())
        if key in ("blocks", "published", "source", "overrides"):
            keys |= {k for entry in nested for k in collect_keys(entry)}
    return keys


def test_there_is_one_for_each_source():
    assert len(STUDIES) == 6


@each_study
def test_it_runs_on_two_cores(path):
    assert plan(path, None, make_site()).name == path.stem
    small = plan(path, OVERRIDE, make_site())
    assert small.name == f"{path.stem}-{OVERRIDE}"
    assert small.feasible
    for cell in small.feasible:
        assert cell.cell.device == "cpu"
        # There is nothing to download.
        assert cell.cell.data in ("digits", "synthetic", "tokens")
    assert small.experiment["launches"] <= 2


@each_study
def test_more_hosts_are_all_that_its_rows_on_several_hosts_want(path):
    wanted = {c.cell.topology for c in plan(path, None, make_site()).cells.values()}
    many = [topology for topology in wanted if not topology.startswith("1x")]
    cluster = plan(path, OVERRIDE, make_site(nodes=16, cores=8))
    feasible = {cell.cell.topology for cell in cluster.feasible}
    assert set(many) <= feasible


@each_study
def test_every_published_row_has_its_cell_and_overrides_keep_rows_apart(path):
    groups = []
    for override in (None, OVERRIDE):
        planned = plan(path, override, make_site())
        rows = planned.experiment["study"]["rows"]
        assert [row["label"] for row in rows] == published_labels(path)
        assert all(row["cell"] in planned.cells for row in rows)
        first = {row["cell"]: at for at, row in reversed([*enumerate(rows)])}
        groups.append([first[row["cell"]] for row in rows])
    assert groups[0] == groups[1]


@each_study
def test_docs_list_it_and_explain_its_keys(path):
    assert f"`studies/{path.name}`" in (ROOT / "docs/studies.md").read_text()
    explained = set(re.findall(r"`(\w+)`", DOCS))
    assert not collect_keys(load_yaml(path)) - explained


def test_the_matrix_of_a_cluster_is_planned():
    """docs/slurm.md: every way over hosts."""
    matrix = ROOT / "tests/cluster/matrix.yaml"
    planned = plan(matrix, None, make_site(nodes=2, cores=2))
    ways = {(c.cell.strategy, c.cell.topology) for c in planned.feasible}
    assert {("zero1", "2x2"), ("pipeline", "2x2"), ("rpc_pmp", "2x2")} <= ways


def test_rows_of_the_v100_table_have_the_topology_that_they_name():
    path = ROOT / "studies/resnet50-mnist-v100.yaml"
    planned = plan(path, None, make_site())
    checked = 1  # The row `benchmark, V100` has no number before the word.
    for row in planned.experiment["study"]["rows"]:
        named = re.search(r", (\d) V100(?: x (\d) node)?$", row["label"])
        if named:
            topology = f"{named[2] or 1}x{named[1]}"
            assert planned.cells[row["cell"]].cell.topology == topology, row["label"]
            checked += 1
    assert checked == 19
