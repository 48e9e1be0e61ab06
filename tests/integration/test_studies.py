"""Each published study runs here, scaled down by its override."""

from __future__ import annotations

import csv
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from rankbench.schema import dump_yaml, load_yaml

pytestmark = pytest.mark.integration

# Only a part of the large studies runs: their strategies have tests of their own.
ONLY = {
    "resnet50-mnist-v100": "strategy=single,rpc_pmp",
    "lenet-mnist-workers": "num_workers=0 augment=affine",
    "horovod-backends": "model=lstm topology=1x1,1x2 backend=none,gloo",
    "gpt-scaling": "strategy=mesh",
}

# Headings of tables that the sources have or request.
TABLES = {
    "convnet-mnist-two-hosts": ["Launches", "Environment"],
    "gpt-scaling": ["Ranks"],
    "horovod-backends": ["Environment"],
    "lenet-mnist-workers": ["Training", "Phases of a step"],
    "pyramidnet-cifar10-p100": ["Training"],
    "resnet50-mnist-v100": ["Ranks"],
}

# Tables that a study shows in addition if a package is installed (`make extras`).
WITH_PACKAGE = {"horovod-backends": ("horovod", ["Launches"])}

STUDIES = sorted((Path(__file__).resolve().parents[2] / "studies").glob("*.yaml"))


@pytest.mark.parametrize("study", STUDIES, ids=lambda path: path.stem)
def test_a_study_gives_its_table_with_the_published_numbers(
    study, project, digits_file
):
    (project.root / "data").mkdir(exist_ok=True)
    with open(project.root / "local_profile/site.yaml", "a") as site:
        site.write("exclusive: true\n")
    shutil.copy(digits_file, project.root / "data")
    # One launch shows that the study runs; other tests cover gates.
    copy = project.root / "studies" / study.name
    content = load_yaml(copy)
    content["overrides"]["laptop"] |= {
        "launches": 1,
        "gate": False,
        "collectives": False,
    }
    copy.write_text(dump_yaml(content))
    only = [f"only={ONLY[study.stem]}"] if study.stem in ONLY else []
    done = project.snakemake(
        f"experiment=studies/{study.name}", "override=laptop", *only, timeout=900
    )
    assert done.returncode == 0, done.stdout
    folder = project.root / f"results/{study.stem}-laptop"
    with open(folder / "table.csv") as file:
        rows = list(csv.DictReader(file))
    states = {row["cell"]: (row["status"], row["reason"]) for row in rows}
    allowed = {"ok", "unsupported"} | ({"not-run"} if only else set())
    assert {status for status, _ in states.values()} <= allowed, states
    assert any(status == "ok" for status, _ in states.values())
    assert all(reason for status, reason in states.values() if status != "ok")

    labels = [
        row["label"]
        for block in load_yaml(study)["blocks"]
        for row in _as_list(block.get("published", []))
    ]
    page = (folder / "report.html").read_text()
    for heading in tables_of(study.stem):
        assert f">{heading}</" in page
    shown = (folder / "sections/published.csv").read_text()
    assert all(label in shown for label in labels)


def tables_of(study: str) -> list[str]:
    """Return the heading of each table that the study must show here."""
    package, tables = WITH_PACKAGE.get(study, (None, []))
    if package and find_spec(package):
        return [*TABLES[study], *tables]
    return TABLES[study]


def _as_list(value):
    return value if isinstance(value, list) else [value]
