"""Common parts of the commands: options, profiles, and completion."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rankbench.cli import load_commands, main, read_arguments
from rankbench.commands import _execute, images, rerun
from rankbench.commands._base import how_to_continue, plan_run, resolve
from rankbench.project import status

pytestmark = pytest.mark.unit

EXPERIMENT = "name: small\nstrategy: single\ntopology: 1x1\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder with two profiles, this machine's and one with images."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SNAKEMAKE_PROFILE", raising=False)
    for name, site in (
        ("local_profile", "device: cpu\n"),
        ("container_profile", "device: cpu\nsoftware: container\n"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "site.yaml").write_text(site)
    (tmp_path / "config.yaml").write_text(EXPERIMENT)
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ["run"],
        ["run", "--no-plots", "--only", "strategy=ddp", "topology=1x2"],
        ["run", "my own.yaml", "--override", "laptop"],
        ["run", "--site", "slurm_profile", "--only", "a=b", "--", "--jobs", "10"],
    ],
)
def test_what_continues_a_run_asks_for_the_same(words, monkeypatch):
    monkeypatch.delenv("SNAKEMAKE_PROFILE", raising=False)
    given = read_arguments(words)
    command = shlex.split(how_to_continue(given))
    assert command[0] == "rankbench"
    assert read_arguments(command[1:]) == given


def test_a_run_without_plots_plans_no_plots(folder):
    assert not plan_run(read_arguments(["run", "--no-plots"]), write=False).plots
    assert plan_run(read_arguments(["run"]), write=False).plots


def test_ctrl_c_before_anything_runs_leaves_no_trace(folder, monkeypatch, cli):
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rankbench.project.run.open_run", interrupt)
    assert cli("run", status=130).err == "rankbench: interrupted\n"
    assert not (folder / "results").exists()


def test_what_continues_a_rerun_asks_for_no_other_attempt():
    words = ["rerun", "other.yaml", "some.cell"]
    command = how_to_continue(read_arguments(words))
    assert command.startswith("rankbench run other.yaml")


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["run", "--prepare"],
        ["images"],
        ["run"],
        ["run", "-n"],
        ["table"],
        ["publish"],
        ["check"],
        ["rerun", "--failed"],
    ],
)
def test_a_profile_that_is_not_there(folder, arguments, cli):
    before = sorted(folder.rglob("*"))
    said = cli(*arguments, "--site", "slurm", status=2).err
    assert said.startswith("rankbench: slurm is not a profile: it has no site.yaml ")
    assert "(profiles here: container_profile, local_profile)" in said
    assert "Traceback" not in said
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("command", ["table", "publish", "status"])
@pytest.mark.parametrize("options", [("--override",), ("--site", "--override")])
def test_results_need_no_experiment(folder, command, options, cli):
    (folder / "results").mkdir()
    given = [word for option in options for word in (option, "x")]
    said = cli(command, "results", *given, status=2).err
    assert all(word in said for word in ("results", *options))
    assert not list((folder / "results").iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rum"], "rum: no such command: did you mean run?"),
        (["history"], "history: no such command: did you mean compare --by date?"),
        (["run", "--profile", "x"], "--profile: did you mean --site?"),
        (["status", "--overide", "x"], "--overide: did you mean --override?"),
        (["run", "--launches", "2"], "launches is a key of the experiment file"),
        (["run", "mien"], "mien does not exist (experiments and results here: config"),
        (["run", "confg.yaml"], "does not exist; did you mean 'config.yaml'?"),
        (["status", "smal"], "smal does not exist"),
        (["status", "local_profile/site.py"], "run FILE` measures a training script"),
        (["run", "results/small"], "results/small/plan.json is damaged"),
        (["answer", "--at", "4x8", "x.yaml"], "topology 'x.yaml' is not NODESxDEV"),
        (["run", "results"], "results is no result folder: it has no plan.json"),
    ],
)
def test_what_was_meant(folder, words, said, cli):
    (folder / "results/small").mkdir(parents=True)
    (folder / "results/small/plan.json").touch()
    (folder / "local_profile/site.py").touch()
    assert said in cli(*words, status=2).err


def test_short_names_of_experiments_and_results(folder, cli):
    assert resolve("config") == "config.yaml"
    cli("run", "config", "-n")
    (folder / "results/small").mkdir(parents=True)
    (folder / "results/small/plan.json").touch()
    for given in ("small", "results/small", "results/small/table.csv"):
        assert resolve(given) == "results/small"


def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that would have been run; none of them is."""
    given: list[list[str]] = []

    def keep(argv: list[str]) -> int:
        given.append(list(argv))
        return 0

    for module in (_execute, images):
        monkeypatch.setattr(module, "run_command", keep)
    return given


def test_prepare_asks_snakemake(folder, monkeypatch):
    given = asked(monkeypatch)
    assert main(["run", "--prepare", "--only", "strategy=single"]) == 0
    (argv,) = given
    assert argv[0] == sys.executable
    assert argv[1:6] == ["-P", "-m", "snakemake", "--profile", "local_profile"]
    # Snakemake would merge a profile of the project's folder.
    assert argv[6:9] == ["--workflow-profile", "none", "prepare"]
    assert argv[-1] == "only=strategy=single"


def test_rerun_of_a_part(folder, monkeypatch, capsys):
    (folder / "config.yaml").write_text(
        "name: small\nstrategy: [single, ddp]\nbackend: [gloo, nccl]\ntopology: 1x2\n"
    )
    given: list[list[str]] = []

    def keep(run: Any, argv: list[str], _: Any) -> int:
        given.append([cell.id for cell in run.chosen])
        assert argv[-1] == f"rerun={','.join(given[-1])}"
        return 0

    monkeypatch.setattr(rerun, "execute", keep)
    # The command fails because the fake run measured nothing.
    assert main(["rerun", "--only", "strategy=ddp", "--json"]) == 1
    ((cell,),) = given
    assert cell.startswith("ddp.gloo.1x2.")
    capsys.readouterr()

    assert main(["rerun", "--only", "strategy=ddp", "--failed", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert main(["rerun", cell, "--only", "strategy=ddp"]) == 2
    assert "ids of cells and --only: give one of them" in capsys.readouterr().err
    assert main(["rerun", "--only", "backend=nccl"]) == 2
    assert "none of these can run here: " in capsys.readouterr().err
    assert main(["rerun"]) == 2
    assert "which cells? Give their ids" in capsys.readouterr().err
    assert len(given) == 1


def test_images_of_an_experiment_and_by_name(folder, monkeypatch, capsys):
    given = asked(monkeypatch)
    here = ["--site", "container_profile"]
    assert main(["images", *here]) == 0
    assert main(["images", "gloo-cpu", *here, "--force"]) == 0
    needed, forced = given
    assert needed[3] == "snakemake"
    assert "images" in needed
    assert forced[2:4] == ["rankbench.launch.images", "gloo-cpu"]
    assert "--force" in forced
    assert main(["images", "gloo-cpu", *here, "--force", "--show"]) == 2
    capsys.readouterr()

    assert main(["images", "gloo-cpu", *here, "--show", "--json"]) == 0
    (image,) = json.loads(capsys.readouterr().out)
    assert image["name"] == "gloo-cpu"
    assert image["missing"]
    assert len(given) == 2  # `--show` builds no image.

    assert main(["images", "glou-cpu", *here]) == 2
    assert "glou-cpu: no such image (known: gloo-cpu" in capsys.readouterr().err
    assert main(["images"]) == 2
    assert "no cell runs in an image here" in capsys.readouterr().err
    assert len(given) == 2


def test_the_hosts_of_a_site_without_a_scheduler(folder, cli):
    said = cli("check", "--site", "local_profile", status=2).err
    assert "local_profile/site.yaml has no scheduler" in said
    assert "--site slurm_profile" in said


def test_bash_completes_commands_and_options(tmp_path):
    script = subprocess.run(
        [sys.executable, "-m", "rankbench.cli", "--print-completion", "bash"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    path = tmp_path / "completion.bash"
    path.write_text(script)

    def complete(*words: str) -> set[str]:
        """What the tab key offers for the last of these words."""
        code = (
            'source "$0"\n'
            'COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*"\n'
            "COMP_POINT=${#COMP_LINE}\n"
            "name=$(complete -p rankbench | sed 's/.*-F \\([^ ]*\\).*/\\1/')\n"
            '"$name" rankbench "${COMP_WORDS[COMP_CWORD]}"\n'
            'printf "%s\\n" "${COMPREPLY[@]}"\n'
        )
        done = subprocess.run(
            ["bash", "-c", code, str(path), *words], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return set(done.stdout.split())

    assert complete("rankbench", "st") == {"status"}
    assert complete("rankbench", "re") == {"rerun", "replay"}
    assert complete("rankbench", "status", "--ov") == {"--override"}
    commands = {command.name for command in load_commands()}
    assert commands <= complete("rankbench", "")


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_completion_of_other_shells(shell, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--print-completion", shell])
    assert ended.value.code == 0
    assert "rerun" in capsys.readouterr().out


def test_status_shows_what_it_has_if_slurm_does_not_answer(folder, cli, monkeypatch):
    def fail(*_: object) -> None:
        raise ValueError("squeue has not answered for 30 s")

    monkeypatch.setattr(status, "find_jobs", fail)
    said = cli("status")
    assert "not-run" in said.out
    assert "which jobs wait or run is not known: squeue has not" in said.err


def test_a_profile_that_a_variable_names(folder, cli, monkeypatch):
    monkeypatch.setenv("SNAKEMAKE_PROFILE", ".")
    said = cli("run", status=2).err
    assert said.startswith("rankbench: ., which SNAKEMAKE_PROFILE names, is not a")
