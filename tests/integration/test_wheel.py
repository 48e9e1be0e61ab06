"""rankbench as `pip install` leaves it: no checkout, a project folder of one's own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from conftest import ROOT
from rankbench import __version__
from rankbench.results.bundle.write import sign_bundle, write_bundle
from unit.keys import make_key, needs_ssh_keygen
from unit.synthetic import make_cell, plan_cell, write_launches, write_plan

pytestmark = pytest.mark.integration

EXPERIMENT = """\
name: own
strategy: [single, ddp]
topology: 1x2
launcher: manual
model: lenet
launches: 1
repeat_disturbed: false
steps: 4
warmup: 1
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of an environment with the wheel.

    Other packages are those of the environment that runs the tests: torch is large.
    """
    place = tmp_path_factory.mktemp("wheel")
    # The copy lacks the files that earlier builds and git left.
    project = place / "project"
    project.mkdir()
    for name in ("src", "workflow", "containers", "local_profile", "slurm_profile"):
        ignored = shutil.ignore_patterns("*.egg-info", "__pycache__")
        shutil.copytree(ROOT / name, project / name, symlinks=True, ignore=ignored)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, project)
    # Tests leave compiled files beside the files that they import.
    compiled = project / "containers/__pycache__/check_image.pyc"
    compiled.parent.mkdir()
    compiled.touch()
    # First the sdist; the wheel is built from that alone.
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(place)]
    run(*build, str(project))
    assert [path.name for path in place.glob("*.tar.gz")] == [
        f"rankbench-{__version__}.tar.gz"
    ]
    (wheel,) = place.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".pyc")]
    shutil.rmtree(project)
    environment = place / "environment"
    venv.create(environment, symlinks=True)
    python = environment / "bin/python"
    pip = ["-m", "pip", "--python", str(python), "install", "--no-index", "--no-deps"]
    run(sys.executable, *pip, "--no-build-isolation", str(wheel))
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    return environment / "bin"


def run(*command: str, cwd: Path | None = None, status: int = 0) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == status, done.stdout
    return done.stdout


def test_results_of_others_are_checked_and_compared(installed, tmp_path):
    shutil.copytree(ROOT / "docs/example", tmp_path / "example")
    rankbench = str(installed / "rankbench")
    assert "verified" in run(rankbench, "verify", "example", cwd=tmp_path)
    shutil.copytree(tmp_path / "example", tmp_path / "copy")
    compared = run(rankbench, "compare", "example", "copy", cwd=tmp_path, status=3)
    assert "5 the same launches" in compared
    table = run(rankbench, "table", "example", "--no-plots", cwd=tmp_path)
    assert "ddp       gloo     1x2" in table
    # Nothing of the bundle has changed.
    assert "verified" in run(rankbench, "verify", "example", cwd=tmp_path)


@pytest.mark.equipment
def test_a_bundle_is_checked_by_the_commands_of_its_page(tmp_path):
    """With nothing but Python and OpenSSH, by the code that the bundle contains."""
    needs_ssh_keygen()
    bundle, key = tmp_path / "bundle", make_key(tmp_path / "jdoe")
    cell = plan_cell(make_cell("single"))
    layout = write_plan(tmp_path / "results", [cell], launches=1)
    write_launches(layout, cell, count=1, wanted=1)
    write_bundle(layout, bundle, anonymise=True)
    sign_bundle(bundle, key)
    (signature,) = bundle.glob("signatures/*.sig")
    public = (tmp_path / "jdoe.pub").read_text()
    (tmp_path / "allowed_signers").write_text(f"jdoe {public}")
    commands = (bundle / "README.md").read_text().partition("```sh\n")[2]
    commands = commands.partition("```")[0].replace("FILE.sig", signature.name)
    commands = commands.replace("-f allowed", "-f ../allowed").replace("WHO ", "jdoe ")
    # Other packages are those of the environment that runs the tests.
    commands = commands.replace("pip install", "pip install -q --no-deps --no-index")
    install, verify, rest = commands.partition("../check/bin/rankbench")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python3").symlink_to(sys.executable)
    for name in ("sha256sum", "ssh-keygen"):
        (tmp_path / "bin" / name).symlink_to(str(shutil.which(name)))
    bare = ["env", "-i", f"PATH={tmp_path}/bin", str(shutil.which("bash")), "-euc"]
    assert 'Good "rankbench" signature for jdoe' in run(*bare, install, cwd=bundle)
    (packages,) = tmp_path.glob("check/lib/python*/site-packages")
    assert (packages / "rankbench/cli.py").exists()
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    said = run(*bare, verify + rest, cwd=bundle)
    assert ".: verified: its numbers were derived again" in said


def test_a_project_of_ones_own(installed, tmp_path, digits_file):
    python, rankbench = str(installed / "python"), str(installed / "rankbench")
    run(rankbench, "init", "own", cwd=tmp_path)
    own = tmp_path / "own"
    (own / "config.yaml").write_text(EXPERIMENT)
    (own / "data").mkdir()
    shutil.copy(digits_file, own / "data")
    assert "files in results/own: report.html" in run(
        rankbench, "run", "--no-plots", cwd=own
    )
    snakemake = [python, "-m", "snakemake", "--profile", "local_profile"]
    table = run(rankbench, "table", "--json", "--no-plots", cwd=own)
    rows = json.loads(table)
    assert [row["status"] for row in rows] == ["ok", "ok"], rows
    (described,) = own.glob("results/own/work/code/*/code.json")
    code = json.loads(described.read_text())
    # The project is not a checkout of rankbench, even if its folder is one of another
    # project.
    assert (code["version"], code["commit"]) == (__version__, None)
    assert "Nothing to be done" in run(*snakemake, "--config", "plots=false", cwd=own)
    on_a_cluster = [python, "-m", "snakemake", "--profile", "slurm_profile", "-n"]
    assert "images to make" in run(*on_a_cluster, cwd=own)
    done = run(*snakemake, "-n", "--config", "rerun=failed", cwd=own, status=1)
    assert "nothing to measure again" in done
    site = run(rankbench, "publish", cwd=own)
    assert "site/index.html" in site
    assert "verified" in run(
        rankbench, "verify", "results/own/results.tar.zst", cwd=own
    )


def test_the_environment_has_the_wheel_alone(installed, tmp_path):
    show = "import rankbench; print(rankbench.__file__)"
    found = Path(run(str(installed / "python"), "-c", show, cwd=tmp_path).strip())
    assert found.is_relative_to(installed.parent)
    assert not found.is_relative_to(ROOT)
