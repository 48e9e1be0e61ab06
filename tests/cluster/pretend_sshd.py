"""Real sshd on the hosts of a pretend cluster, which lets its user in by key.

The user has a home of its own on each host, so hosts share no file below it, and the
keys and settings of the machine's user stay as they are.
"""

from __future__ import annotations

import os
import pwd
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from pretend_cluster import Cluster
from pretend_host import Host, check, wait_until

SSHD = "/usr/sbin/sshd"
OPTIONS = ("PidFile=none", "UsePAM=no", "PasswordAuthentication=no")


def start_sshds(cluster: Cluster) -> None:
    """Give each host a key, the user a home and a key on each, and start sshd."""
    keys = cluster.state / "ssh"
    keys.mkdir(mode=0o700)
    for name in ("user", *cluster.hosts):
        make_key(keys / name)
    for host in cluster.hosts.values():
        furnish_home(cluster, host)
        start_sshd(cluster, host)


def make_key(path: Path) -> None:
    check(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", path])


def home_of(cluster: Cluster, host: Host) -> Path:
    """The home on a host, as the machine sees it."""
    return cluster.state / "homes" / host.name


def home_there(cluster: Cluster) -> Path:
    """The home on each host, as the host sees it."""
    return Path(pwd.getpwnam(cluster.user).pw_dir)


def furnish_home(cluster: Cluster, host: Host) -> None:
    """Mount the user's home, with keys that open all hosts."""
    home, keys = home_of(cluster, host), cluster.state / "ssh"
    if not home.exists():
        ssh = home / ".ssh"
        ssh.mkdir(mode=0o700, parents=True)
        public = (keys / "user.pub").read_text()
        (ssh / "authorized_keys").write_text(public)
        shutil.copy(keys / "user", ssh / "id_ed25519")
        known = (
            f"{name} {(keys / f'{name}.pub').read_text()}" for name in cluster.hosts
        )
        (ssh / "known_hosts").write_text("".join(known))
        home.chmod(0o755)
        give(home, cluster.user)
    host.do("mount", "--bind", home, home_there(cluster))


def give(folder: Path, user: str) -> None:
    """Make the user the owner of a folder and everything in it."""
    for path in (folder, *folder.rglob("*")):
        shutil.chown(path, user)


def start_sshd(cluster: Cluster, host: Host) -> None:
    options = [word for option in OPTIONS for word in ("-o", option)]
    host.do("mkdir", "-p", "/run/sshd")
    host.do(SSHD, "-h", cluster.state / "ssh" / host.name, *options)


def kill_sshd(host: Host) -> None:
    """End sshd and all its connections."""
    host.do("pkill", "-KILL", "--exact", "sshd")


def command_on(
    cluster: Cluster,
    host: Host,
    argv: Sequence[str | Path],
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> list[str]:
    """What runs argv on a host as the user, with the variables of a fresh login."""
    become = ("setpriv", f"--reuid={cluster.user}", f"--regid={cluster.user}")
    given = {"PATH": os.environ["PATH"], **(environment or {})}
    variables = [f"{name}={value}" for name, value in given.items()]
    folder = ("env", f"--chdir={cwd or home_there(cluster)}", *variables)
    return host.command([*become, "--init-groups", "--reset-env", *folder, *argv])


def processes(cluster: Cluster) -> str:
    """What the hosts run for the user, but for connections that sshd still holds.

    After a link was cut, sshd keeps a connection until TCP gives it up.
    """
    lines = []
    for host in cluster.hosts.values():
        command = host.command(["pgrep", "--list-full", "--euid", cluster.user])
        lines += check(["sh", "-c", '"$@" || true', "sh", *command]).splitlines()
    return "\n".join(line for line in lines if " sshd: " not in line)


def wait_until_gone(cluster: Cluster) -> None:
    """No process of the user is left on any host."""
    wait_until(lambda: not processes(cluster), lambda: f"gone: {processes(cluster)}")
