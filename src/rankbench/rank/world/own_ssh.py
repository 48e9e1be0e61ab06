"""Runs a launcher that reaches the other hosts by ssh, with the user's own ssh.

A program `ssh` that stands first on PATH calls the real one. It drops the launcher's
options, because some launchers switch off the check of host keys, and gives commands
the environment of this launch, because sshd does not.

    python -m rankbench.rank.world.own_ssh FOLDER COMMAND ...
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import NoReturn

from rankbench.environ import for_hosts
from rankbench.rank.world.remote import read_ssh, write_ssh

ENVIRONMENT = "environment.json"


def main() -> NoReturn:
    if sys.argv[1] == "--as-ssh":
        host, remote = read_ssh(sys.argv[3:])
        real_ssh(Path(sys.argv[2]), host, remote)
    folder, command = Path(sys.argv[1]), sys.argv[2:]
    module = "rankbench.rank.world.own_ssh"
    write_ssh(folder, module, "--as-ssh", str(folder))
    path = f"{folder}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    kept = folder / ENVIRONMENT
    kept.touch(0o600)
    kept.write_text(json.dumps(for_hosts(environment)))
    os.execvpe(command[0], command, environment)  # noqa: S606


def real_ssh(folder: Path, host: str, command: str) -> NoReturn:
    """Become the real ssh, which runs a shell command on another host."""
    environment = json.loads((folder / ENVIRONMENT).read_text())
    others = [path for path in os.environ["PATH"].split(":") if path != str(folder)]
    program = shutil.which("ssh", path=":".join(others))
    if program is None:
        sys.exit("this host has no ssh: install OpenSSH's client")
    variables = [f"{name}={value}" for name, value in environment.items()]
    # Through a shell of its own, so that `cd` and lists of commands work after env.
    there = shlex.join(["exec", "env", *variables, "sh", "-c", command])
    argv = [program, "-T", "-o", "BatchMode=yes", "--", host, there]
    os.execv(program, argv)  # noqa: S606


if __name__ == "__main__":
    main()
