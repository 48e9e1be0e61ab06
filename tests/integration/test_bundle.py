"""A bundle of a real run, as it is published; and the example that is."""

from __future__ import annotations

import getpass
import gzip
import json
import socket
from pathlib import Path

import pytest

from rankbench.record import Layout
from rankbench.results.bundle.disguise import COMMON
from rankbench.results.bundle.verify import verify_bundle
from rankbench.results.bundle.write import write_bundle

pytestmark = pytest.mark.integration

EXAMPLE = Path(__file__).resolve().parents[2] / "docs/example"
MOST_BYTES = 5_000_000

EXPERIMENT = """\
name: small
strategy: [single, ddp]
topology: 1x2
launcher: manual
model: convnet
data: digits
steps: 12
warmup: 2
launches: 1
profile: true
"""
DDP = "ddp.gloo.1x2.convnet.digits.launcher=manual"


def read_all(bundle: Path) -> dict[str, bytes]:
    found = {}
    for path in sorted(path for path in bundle.rglob("*") if path.is_file()):
        data = path.read_bytes()
        plain = gzip.decompress(data) if path.suffix == ".gz" else data
        found[path.relative_to(bundle).as_posix()] = plain
    return found


def test_a_run_is_published_and_verified(project, tmp_path):
    project.measure(EXPERIMENT)
    layout = Layout(project.root / "results/small")
    # The experiment file was edited since; the bundle has the version that was run.
    project.experiment("name: other\n")
    write_bundle(layout, tmp_path / "bundle", anonymise=True)
    write_bundle(layout, tmp_path / "results.tar.zst", anonymise=True)
    for form in ("bundle", "results.tar.zst"):
        done = project.rankbench("verify", str(tmp_path / form))
        assert done.returncode == 0, done.stdout
        assert ": verified: its numbers were derived again" in done.stdout

    files = read_all(tmp_path / "bundle")
    assert files["work/experiment.yaml"].decode() == EXPERIMENT
    assert files["table.csv"] == layout.table("csv").read_bytes()
    assert files["table.md"] == layout.table("md").read_bytes()
    records = [name for name in files if name.endswith("record.json")]
    # Each cell has a launch and a profile, and one cell also a gate.
    assert len(records) == 5
    assert any(name.endswith("/trace0.json.gz") for name in files)
    assert any(name.endswith("/gloo.def") for name in files)
    texts = {name: data for name, data in files.items() if not is_definition(name)}
    places = {str(project.root), str(Path.home())}
    for name in {*places, socket.gethostname(), getpass.getuser()} - COMMON:
        if len(name) > 4:
            assert not [file for file, data in texts.items() if name.encode() in data]
    for name in records:
        record = json.loads(files[name])
        told = {
            one["host"] for key in ("ranks", "hosts") for one in record.get(key, ())
        }
        assert told <= {"host1"}, name

    # Somebody changes a record so that one cell looks slower.
    path = tmp_path / f"bundle/records/{DDP}/1/1/record.json"
    text = path.read_text()
    path.write_text(text.replace('"window_s": ', '"window_s": 9', 1))
    done = project.rankbench("verify", str(tmp_path / "bundle"))
    assert done.returncode == 1
    assert "1/1/record.json: has " in done.stdout
    assert f"of {DDP}, column throughput: publ" in done.stdout


def is_definition(name: str) -> bool:
    return name.startswith("work/code/")


@pytest.mark.first
def test_the_published_example_verifies():
    assert verify_bundle(EXAMPLE).findings == []
    files = read_all(EXAMPLE)
    assert sum(map(len, files.values())) <= MOST_BYTES
    assert json.loads(files["about.json"])["anonymised"] is True
