"""A project folder of one's own, and a wheel without its extras."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml

from rankbench.assets import find_asset
from rankbench.cli import find_extra, main

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("there", [False, True])
def test_init_writes_what_a_user_edits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], there: bool
) -> None:
    folder = tmp_path / "a/b"
    if there:
        folder.mkdir(parents=True)
    assert main(["init", str(folder), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["files"] == [
        ".gitignore",
        "Snakefile",
        "config.yaml",
        "local_profile/config.yaml",
        "local_profile/site.yaml",
        "slurm_profile/config.yaml",
        "slurm_profile/site.yaml",
    ]
    assert yaml.safe_load((folder / "config.yaml").read_text())["name"] == "quickstart"
    # The workflow is the package's own.
    assert "rankbench.assets" in (folder / "Snakefile").read_text()
    assert not (folder / "workflow").exists()


def test_init_keeps_what_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text("mine")
    assert main(["init", str(tmp_path)]) == 2
    assert f"{tmp_path} is not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]
    assert (tmp_path / "config.yaml").read_text() == "mine"
    assert main(["init", str(tmp_path / "config.yaml")]) == 2
    assert "is a file" in capsys.readouterr().err


def test_a_missing_extra_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "rankbench.results.bundle", None)
    monkeypatch.setattr("rankbench.cli.find_extra", lambda name: "results")
    assert main(["verify", str(tmp_path)]) == 2
    assert "pip install 'rankbench[results]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("pandas", "results"),
        ("matplotlib.figure", "results"),
        ("zstandard", "results"),
        ("snakemake.utils", "workflow"),
        ("torch", "rank"),
        ("rankbench.nowhere", None),
        ("numpy", None),
    ],
)
def test_modules_of_extras(module: str, extra: str | None) -> None:
    assert find_extra(module) == extra


@pytest.mark.parametrize(
    "name", ["Snakefile", "containers/gloo.def", "workflow/schemas", "CITATION.cff"]
)
def test_assets_are_found(name: str) -> None:
    assert find_asset(name).exists()
