"""The arguments of Snakemake, as its own parser reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("snakemake", reason="needs the workflow extra")

from snakemake.cli import parse_args

from factories import read_pairs
from rankbench.invocation import DEFAULT_PROFILE, PASSIVE, read_invocation

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two profiles with site facts, one without."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SNAKEMAKE_PROFILE", raising=False)
    for name in ("local_profile", "slurm_profile", "extra"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text("cores: 1\n")
        if name != "extra":
            (tmp_path / name / "site.yaml").write_text("device: auto\n")


@pytest.mark.parametrize(("argv", "profile"), read_pairs("profiles.txt"))
def test_profile(argv, profile):
    assert read_invocation(argv.split()).profile == Path(profile)


def test_profile_by_an_absolute_path_and_from_the_environment(tmp_path, monkeypatch):
    assert read_invocation([]).profile == Path(DEFAULT_PROFILE)
    path = tmp_path / "slurm_profile"
    assert read_invocation(["--profile", str(path)]).profile == path
    monkeypatch.setenv("SNAKEMAKE_PROFILE", "slurm_profile")
    assert read_invocation([]).profile == Path("slurm_profile")
    given = ["--profile", "local_profile"]
    assert read_invocation(given).profile == Path("local_profile")


@pytest.mark.parametrize(("argv", "kind"), read_pairs("flags.txt"))
def test_flags(argv, kind):
    invocation = read_invocation(["--profile", "local_profile", *argv.split()])
    found = (invocation.dry_run, invocation.passive)
    assert found == (kind == "dry run", kind != "runs jobs")


@pytest.mark.parametrize("targets", ["", "all", "images all", "publish"])
def test_targets_that_measure(targets):
    def measures(targets: str) -> bool:
        argv = [*targets.split(), "--profile", "slurm_profile"]
        return read_invocation(argv).measures

    assert measures(targets)
    assert not measures("images")
    assert not measures("prepare images")


def test_snakemake_knows_every_flag():
    # A flag that Snakemake renames would silently count as one that runs jobs.
    _, arguments = parse_args(["--cores", "1"])
    assert set(PASSIVE) <= vars(arguments).keys()


def test_it_reads_its_own_command_line_and_is_silent(monkeypatch, capfd):
    monkeypatch.setattr("sys.argv", ["snakemake", "-n", "--profile", "slurm_profile"])
    invocation = read_invocation()
    assert invocation.profile == Path("slurm_profile")
    assert invocation.dry_run
    assert capfd.readouterr() == ("", "")
