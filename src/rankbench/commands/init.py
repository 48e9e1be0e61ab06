"""The command `rankbench init`."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from rankbench.assets import find_asset
from rankbench.commands._options import OK, command, print_json
from rankbench.matrix.site import check_hosts

# Files that users edit. The workflow itself stays in the package.
OWN = ("config.yaml", "local_profile", "slurm_profile")

SSH_PROFILE = "ssh_profile"


@command(
    place=("set up", 1),
    summary="write a new project folder",
    options="FOLDER --ssh",
    examples=("init my-benchmark", "init my-benchmark --ssh alpha:2 beta:2 --json"),
    exits="0; 2 if the folder is not empty or a host is none (then nothing is written)",
    json_holds="the folder, and the files written",
)
def init(arguments: argparse.Namespace) -> int:
    """Write a new project folder: an experiment, a profile for this machine, a
    profile for a Slurm cluster or for hosts that ssh reaches, and a Snakefile that
    uses the installed workflow. Nothing is measured.

    Raises:
        ValueError: the folder is not empty, or is a file, or a host is no host.
    """
    folder: Path = arguments.folder
    hosts: list[dict[str, Any]] = []
    for word in arguments.ssh or ():
        name, colon, devices = word.partition(":")
        if colon and not devices.isdecimal():
            raise ValueError(
                f"--ssh: {word}: expected HOST or HOST:DEVICES, such as a:2"
            )
        hosts.append({"name": name, "devices": int(devices or 1)})
    if hosts:
        check_hosts(hosts, "--ssh")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        what = "is not empty" if folder.is_dir() else "is a file"
        raise ValueError(f"{folder} {what}: name a new folder, or an empty one")
    folder.mkdir(parents=True, exist_ok=True)
    for name in OWN:
        asset = find_asset(name)
        if asset.is_dir():
            # Not the modes: files of an installed package may be read-only.
            (folder / name).mkdir()
            for file in asset.iterdir():
                shutil.copyfile(file, folder / name / file.name)
        else:
            shutil.copyfile(asset, folder / name)
    if hosts:
        # The settings of Snakemake are those of one machine.
        shutil.copytree(folder / "local_profile", folder / SSH_PROFILE)
        listed = [f"  - {{name: {h['name']}, devices: {h['devices']}}}" for h in hosts]
        text = find_asset("new_project/ssh_site.yaml").read_text()
        text = text.replace("{hosts}", "\n".join(listed))
        (folder / SSH_PROFILE / "site.yaml").write_text(text)
    shutil.copyfile(find_asset("new_project/Snakefile"), folder / "Snakefile")
    shutil.copyfile(find_asset("new_project/gitignore"), folder / ".gitignore")
    files = sorted(
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()
    )
    if arguments.json:
        print_json({"folder": str(folder), "files": files})
        return OK
    print(*(f"wrote {folder / name}" for name in files), sep="\n", file=sys.stderr)
    profile = SSH_PROFILE if hosts else "local_profile"
    option = f" --site {SSH_PROFILE}" if hosts else ""
    print(
        f"next: cd {shlex.quote(str(folder))}, then edit config.yaml (the experiment) "
        f"and {profile}/site.yaml ({'the hosts' if hosts else 'this machine'});\n"
        + (f"`rankbench site-check{option}` checks the hosts,\n" if hosts else "")
        + f"`rankbench run -n{option}` shows what would run, `rankbench run{option}` "
        "measures it\n"
        f"schemas with all keys of both files: {find_asset('workflow/schemas')}"
    )
    return OK
