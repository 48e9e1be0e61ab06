"""A new project folder, and a wheel without its extras."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from rankbench.environ import explain_module, require
from rankbench.matrix.site import read_site
from rankbench.schema import load_yaml

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("there", [False, True])
def test_init_writes_what_a_user_edits(tmp_path, cli, there):
    folder = tmp_path / "a/b"
    if there:
        folder.mkdir(parents=True)
    said = json.loads(cli("init", folder, "--json").out)
    assert said["files"] == [
        ".gitignore",
        "Snakefile",
        "config.yaml",
        "local_profile/config.yaml",
        "local_profile/site.yaml",
        "slurm_profile/config.yaml",
        "slurm_profile/site.yaml",
    ]
    assert load_yaml(folder / "config.yaml")["name"] == "quickstart"
    # The project uses the workflow inside the package.
    assert "rankbench.assets" in (folder / "Snakefile").read_text()
    assert not (folder / "workflow").exists()


def test_init_says_what_comes_next(tmp_path, cli):
    said = cli("init", tmp_path / "my own").out
    assert f"cd '{tmp_path}/my own'" in said
    for name in ("config.yaml", "local_profile/site.yaml", "slurm_profile/site.yaml"):
        text = (tmp_path / "my own" / name).read_text()
        (schema,) = re.findall(r"\S+schema\.yaml", text)
        assert Path(schema).is_absolute()
        assert Path(schema).exists()


def test_init_keeps_what_is_there(tmp_path, cli):
    (tmp_path / "config.yaml").write_text("mine")
    assert f"{tmp_path} is not empty" in cli("init", tmp_path, status=2).err
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]
    assert (tmp_path / "config.yaml").read_text() == "mine"
    assert "is a file" in cli("init", tmp_path / "config.yaml", status=2).err


def test_a_missing_extra_is_named(tmp_path, monkeypatch, cli):
    monkeypatch.setitem(sys.modules, "rankbench.results.bundle.verify", None)
    listed = ["rankbench; extra == 'results'"]
    monkeypatch.setattr("rankbench.environ.metadata.requires", lambda _: listed)
    assert "pip install 'rankbench[results]'" in cli("verify", tmp_path, status=2).err


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("pandas", "results"),
        ("matplotlib.figure", "results"),
        ("zstandard", "results"),
        ("snakemake.utils", "workflow"),
        ("snakemake_executor_plugin_slurm", "slurm"),
        ("torch", "rank"),
        ("rankbench.nowhere", None),
        ("numpy", None),
    ],
)
def test_modules_of_extras(module, extra):
    said = explain_module(module)
    assert f"rankbench[{extra}]" in said if extra else said is None


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Packages that seem not to be installed."""
    names: set[str] = set()
    find = metadata.version

    def version(name: str) -> str:
        if name in names:
            raise metadata.PackageNotFoundError(name)
        return find(name)

    monkeypatch.setattr("rankbench.environ.metadata.version", version)
    return names


def test_packages_of_extras(without):
    require("workflow", "slurm", "results")
    without |= {"pandas", "scipy", "snakemake-executor-plugin-slurm"}
    require("workflow")
    with pytest.raises(ValueError, match=r"this needs pandas, scipy, which are not"):
        require("workflow", "results")
    with pytest.raises(ValueError, match=r"-slurm, pandas, .*'rankbench\[slurm,resul"):
        require("slurm", "results")


@pytest.mark.parametrize("command", ["run", "run --prepare", "images", "check"])
@pytest.mark.parametrize(
    ("package", "extra"),
    [("snakemake", "workflow"), ("snakemake-executor-plugin-slurm", "slurm")],
)
def test_nothing_begins_without_snakemake(
    tmp_path, monkeypatch, cli, without, command, package, extra
):
    monkeypatch.chdir(tmp_path)
    cli("init", ".")
    (tmp_path / "config.yaml").write_text("name: own\nstrategy: ddp\ntopology: 1x2\n")
    before = sorted(tmp_path.rglob("*"))
    without.add(package)
    said = cli(*command.split(), "--site", "slurm_profile", status=2).err
    assert f"this needs {package}, which is not installed" in said
    assert f"pip install 'rankbench[{extra}]'" in said
    assert sorted(tmp_path.rglob("*")) == before


def test_the_table_at_the_end_will_not_fail(tmp_path, monkeypatch, cli, without):
    monkeypatch.chdir(tmp_path)
    cli("init", ".")
    without.add("pandas")
    assert "pip install 'rankbench[results]'" in cli("run", status=2).err
    assert not (tmp_path / "results").exists()


def test_init_writes_a_profile_for_hosts(tmp_path, cli):
    folder = tmp_path / "bench"
    assert (
        "rankbench check --site ssh_profile"
        in cli("init", folder, "--ssh", "alpha:2", "beta").out
    )
    facts = read_site(folder / "ssh_profile/site.yaml")
    listed = [(host["name"], host["devices"]) for host in facts["hosts"]]
    assert (facts["scheduler"], listed) == ("ssh", [("alpha", 2), ("beta", 1)])
    settings = (folder / "local_profile/config.yaml").read_text()
    assert (folder / "ssh_profile/config.yaml").read_text() == settings


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a", "a"], "a appears twice"),
        (["a:x"], "expected HOST or HOST:DEVICES"),
        (["me@a"], "is no name of a host"),
    ],
)
def test_init_refuses_hosts_that_are_none(tmp_path, cli, words, said):
    assert said in cli("init", tmp_path / "bench", "--ssh", *words, status=2).err
    assert not (tmp_path / "bench").exists()


def test_help_needs_no_package_of_an_extra():
    """A wheel without extras has none of these."""
    code = (
        "import sys\n"
        "for name in ('scipy', 'pandas', 'seaborn', 'jinja2', 'snakemake', 'torch'):\n"
        "    sys.modules[name] = None\n"
        "from rankbench.cli import main\n"
        "main(['--help'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "measure an experiment, and print its answer" in done.stdout
