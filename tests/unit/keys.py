"""Keys of SSH for tests that sign bundles."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def needs_ssh_keygen() -> None:
    if not shutil.which("ssh-keygen"):
        pytest.skip("ssh-keygen is not installed: apt-get install openssh-client")


def make_key(path: Path, *, passphrase: str = "", comment: str = "") -> Path:
    """A key pair, PATH and PATH.pub."""
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", comment]
    subprocess.run([*words, "-f", str(path)], check=True, stdin=subprocess.DEVNULL)
    return path
