"""Files of the user's own in a bundle: they are checked, and never executed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rankbench.record import Layout
from rankbench.results.bundle import verify_bundle, write_bundle
from unit.synthetic import edited, write_own_model
from unit.test_bundle import seal

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A bundle with a model that would leave a mark, if anything executed it."""
    place = tmp_path_factory.mktemp("own")
    layout = write_own_model(place)
    (folder,) = (layout.work / "own").iterdir()
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__/net.pyc").write_text("compiled")
    write_bundle(layout, place / "bundle", anonymise=True)
    return place / "bundle"


@pytest.fixture
def bundle(made: Path, tmp_path: Path) -> Path:
    """A copy, which a test may damage."""
    return shutil.copytree(made, tmp_path / "bundle")


def said(bundle: Path) -> list[str]:
    """Findings after the bundle was sealed again, as somebody who cheats would do."""
    seal(bundle)
    return [str(finding) for finding in verify_bundle(bundle).findings]


def net_of(bundle: Path) -> Path:
    (path,) = bundle.glob("work/own/*/net.py")
    return path


def test_it_verifies_without_executing_anything(bundle, made):
    assert not verify_bundle(bundle).findings
    assert not (made.parent / "executed").exists()
    assert [path.name for path in net_of(bundle).parent.iterdir()] == ["net.py"]


def edit(bundle: Path) -> None:
    path = net_of(bundle)
    path.write_text(path.read_text() + "# faster\n")


def remove(bundle: Path) -> None:
    net_of(bundle).unlink()
    net_of_folder = next(bundle.glob("work/own/*"))
    net_of_folder.rmdir()


def add(bundle: Path) -> None:
    (net_of(bundle).parent / "other.py").write_text("")


def compile_it(bundle: Path) -> None:
    place = net_of(bundle).parent / "__pycache__"
    place.mkdir()
    (place / "net.pyc").write_text("another model")


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (edit, "holds other files than those that were measured"),
        (remove, "is missing: a cell was measured with these files"),
        (add, "holds other files than those that were measured"),
        (compile_it, "net.pyc: is no part of a bundle"),
    ],
)
def test_a_change_is_found(bundle, change, finding):
    change(bundle)
    assert any(finding in one for one in said(bundle))


@pytest.mark.parametrize("place", ["plan.json", "record.json"])
def test_a_digest_that_is_a_path_is_refused(bundle, place):
    layout = Layout(bundle)
    path = layout.plan if place == "plan.json" else next(bundle.rglob("record.json"))
    with edited(path) as value:
        cell = value["cells"][0]["cell"] if place == "plan.json" else value["cell"]
        cell["own_files"]["model"]["digest"] = "../../../../etc"
    assert any("../../../../etc" in one for one in said(bundle))
