"""The command `rankbench init`."""

from __future__ import annotations

import argparse
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankbench.assets import find_asset
from rankbench.commands._options import OK, command, print_json
from rankbench.launch.site.partitions import (
    Partition,
    ask_partitions,
    choose_partition,
)
from rankbench.matrix.site import check_hosts
from rankbench.say import say
from rankbench.schema import dump_yaml

# Files that users edit. The workflow itself stays in the package.
OWN = ("config.yaml", "local_profile", "slurm_profile")

# As the files name their folder, which a checkout has.
_SCHEMAS = "workflow/schemas"

SLURM_PROFILE, SSH_PROFILE = "slurm_profile", "ssh_profile"


@command(
    options="FOLDER --ssh --slurm --site",
    examples=(
        "init my-benchmark",
        "init my-benchmark --ssh alpha:2 beta:2 --json",
        "init --slurm",
        "init --slurm gpu --site gpu_profile",
    ),
    exits="0, or 2 on bad input or if Slurm does not answer (nothing is written)",
    json_holds="the folder, and the files written",
)
def init(arguments: argparse.Namespace) -> int:
    """Write a new project folder: an experiment, a profile for this machine, a
    profile for a Slurm cluster or for hosts that ssh reaches, and a Snakefile that
    uses the installed workflow. With --slurm, ask Slurm what it has. Nothing is
    measured.

    Raises:
        ValueError: the folder is not empty, or is a file; a host is no host; or Slurm
            has no partition for this user.
    """
    folder: Path | None = arguments.folder
    if arguments.site and arguments.slurm is None:
        raise ValueError("--site needs --slurm: it names the profile to write")
    if folder is None and (arguments.slurm is None or arguments.ssh):
        raise ValueError("name a folder for the project: rankbench init FOLDER")
    hosts = _read_hosts(arguments.ssh or ())
    if folder and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        what = "is not empty" if folder.is_dir() else "is a file"
        raise ValueError(f"{folder} {what}: name a new folder, or an empty one")
    root, files = folder or Path(), set()
    partitions: Sequence[Partition] = ()
    profile: str | None = SSH_PROFILE if hosts else None
    if arguments.slurm is not None:
        partitions = ask_partitions()
        chosen = choose_partition(partitions, arguments.slurm or None)
        profile = arguments.site or SLURM_PROFILE
    if folder:
        files |= _write_project(folder, hosts)
    if partitions and profile:
        files |= _write_site(root / profile, chosen, keep=folder is None)
    listed = sorted(str(path.relative_to(root)) for path in files)
    if arguments.json:
        print_json({"folder": str(root), "files": listed})
        return OK
    say(*(f"wrote {root / name}" for name in listed), aside=True)
    for partition in partitions:
        mark = "*" if partition is chosen else " "
        say(f"{mark} {partition.describe()}")
    option = f" --site {shlex.quote(profile)}" if profile else ""
    what = "the cluster" if partitions else "the hosts" if hosts else "this machine"
    enter = "" if root == Path() else f"cd {shlex.quote(str(root))}, then "
    say(
        f"next: {enter}edit config.yaml (the experiment) and "
        f"{profile or 'local_profile'}/site.yaml ({what});\n"
        + (f"`rankbench check{option}` checks the hosts,\n" if option else "")
        + f"`rankbench run -n{option}` shows what would run, `rankbench run{option}` "
        "measures it"
    )
    return OK


def _read_hosts(words: Sequence[str]) -> list[dict[str, Any]]:
    """The hosts that --ssh names."""
    hosts: list[dict[str, Any]] = []
    for word in words:
        name, colon, devices = word.partition(":")
        if colon and not devices.isdecimal():
            raise ValueError(
                f"--ssh: {word}: expected HOST or HOST:DEVICES, such as a:2"
            )
        hosts.append({"name": name, "devices": int(devices or 1)})
    if hosts:
        check_hosts(hosts, "--ssh")
    return hosts


def _write_project(folder: Path, hosts: Sequence[dict[str, Any]]) -> set[Path]:
    """Write the files of a project. Return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in OWN:
        asset = find_asset(name)
        if asset.is_dir():
            _copy_profile(asset, folder / name)
        else:
            _copy(asset, folder / name)
    if hosts:
        # The settings of Snakemake are those of one machine.
        _copy_profile(folder / "local_profile", folder / SSH_PROFILE)
        listed = [f"  - {{name: {h['name']}, devices: {h['devices']}}}" for h in hosts]
        text = find_asset("new_project/ssh_site.yaml").read_text()
        text = text.replace("{hosts}", "\n".join(listed))
        (folder / SSH_PROFILE / "site.yaml").write_text(text)
    shutil.copyfile(find_asset("new_project/Snakefile"), folder / "Snakefile")
    shutil.copyfile(find_asset("new_project/gitignore"), folder / ".gitignore")
    return {path for path in folder.rglob("*") if path.is_file()}


def make_project_here() -> None:
    """Write what a run on this machine needs into this folder."""
    _copy_profile(find_asset("local_profile"), Path("local_profile"))
    shutil.copyfile(find_asset("new_project/Snakefile"), "Snakefile")
    say("wrote local_profile and Snakefile: this folder is a project now", aside=True)


def _copy_profile(source: Path, folder: Path) -> None:
    """Copy the files of a profile; not their modes: a package may be read-only."""
    folder.mkdir(parents=True)
    for name in ("config.yaml", "site.yaml"):
        _copy(source / name, folder / name)


def _copy(source: Path, target: Path) -> None:
    """Copy a text, which then names the schemas by the place where they are."""
    place = str(find_asset(_SCHEMAS))
    target.write_text(source.read_text().replace(f" {_SCHEMAS}/", f" {place}/"))


def _write_site(profile: Path, partition: Partition, *, keep: bool) -> set[Path]:
    """Write what Slurm says about a partition into the site file of a profile.

    Other keys stay as they are.

    Args:
        profile: its folder; a copy of `slurm_profile` if it is missing.
        keep: whether to keep a site file that is there as ``site.yaml.old``.

    Returns:
        The files that were written.

    Raises:
        ValueError: there is a ``site.yaml.old`` already.
    """
    file, old = profile / "site.yaml", profile / "site.yaml.old"
    written = {file}
    if not file.exists():
        _copy_profile(find_asset(SLURM_PROFILE), profile)
        written.add(profile / "config.yaml")
    elif keep:
        if old.exists():
            raise ValueError(
                f"{file} exists, and {old} from before: remove one of them, or name "
                "another profile by --site"
            )
        shutil.copyfile(file, old)
        written.add(old)
    lines = file.read_text().splitlines()
    for key, value in partition.facts.items():
        note = f"  # {partition.notes[key]}" if key in partition.notes else ""
        line = dump_yaml({key: value}).strip() + note
        places = [i for i, each in enumerate(lines) if each.startswith(f"{key}:")]
        if places:
            lines[places[0]] = line
        else:
            lines.append(line)
    file.write_text("\n".join(lines) + "\n")
    return written
