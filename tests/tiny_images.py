"""Definitions of images that are small and quick to build, for tests of the building.

They take Debian's Python and a stand-in for torch: what images promise is the matter of
containers/check_image.py and of tests with the real ones.
"""

from __future__ import annotations

from pathlib import Path

from rankbench.schema import dump_yaml

# Real builds begin like this, and take half a minute.
FROM_DEBIAN = """
Bootstrap: debootstrap
MirrorURL: {{ mirror }}
OSVersion: bookworm
Include: python3
"""

# A command for faults after the beginning of a build.
FROM_FILE = """
Bootstrap: localimage
From: FILE
"""

DEFINITION = """

%arguments
    flavour=cpu
    wheels=wheels

%files
    {{ wheels }} /opt/rankbench/wheels
    containers/INPUT /opt/rankbench/input.sh
    containers/program /usr/bin/mpirun
    containers/program /usr/bin/torchrun
    containers/torch.py /usr/lib/python3/dist-packages/torch.py

%post
    echo "== 0 s: reading INPUT of {{ flavour }}"
    . /opt/rankbench/input.sh
    # An ordinary user may unpack it for the next one: nothing in it is another's than
    # root's. Files bound to the machine's keep their owner, and make chown fail;
    # where it failed for others, the next image cannot be built, which tests notice.
    find / -xdev '(' ! -uid 0 -o ! -gid 0 ')' -exec chown -h 0:0 {} + || true

%test
    python3 -c 'import torch'
"""

TORCH = '''
"""Answers what rankbench.rank.facts.host asks of torch."""

import sys
import types

__version__ = "2.13.0+cpu"
version = types.SimpleNamespace(cuda=None)
cuda = types.SimpleNamespace(is_available=lambda: False)
distributed = types.SimpleNamespace(
    is_available=lambda: True,
    is_gloo_available=lambda: True,
    is_mpi_available=lambda: True,
    is_nccl_available=lambda: False,
    rpc=types.SimpleNamespace(is_available=lambda: True),
)
'''

SERVES = {"gloo": ["none", "gloo"], "mpi": ["mpi"]}

PROMISE = {
    "suite": "bookworm",
    "snapshot": "20260101T000000Z",
    "flavours": ["cpu"],
    "python": "3.11",
    "requirements": {"cpu": ["cpu.txt"]},
    "torch": "2.13.0",
    "rpc": True,
    "horovod": [],
    "packages": [],
    "programs": ["python3", "mpirun", "torchrun"],
}


def write_containers(
    folder: Path, *names: str, based_on: dict[str, Path] | None = None
) -> Path:
    """A folder of definitions, one for each name; each reads an input of its own.

    Nothing is fetched for them, so that only a Debian mirror is needed.

    Args:
        based_on: by name, the image that it begins with instead of with Debian's
            packages.
    """
    (folder / "requirements").mkdir(parents=True)
    for file in ("cpu.txt", "sources.txt"):
        (folder / "requirements" / file).write_text("")
    (folder / "torch.py").write_text(TORCH)
    (folder / "program").write_text("#!/bin/sh\n")
    (folder / "program").chmod(0o755)
    (folder / "check_image.py").write_text("print('ok')\n")
    entries = {}
    for name in names:
        (folder / f"{name}.sh").write_text("true\n")
        base = (based_on or {}).get(name)
        begin = FROM_FILE.replace("FILE", str(base)) if base else FROM_DEBIAN
        definition = begin + DEFINITION.replace("INPUT", f"{name}.sh")
        (folder / f"{name}.def").write_text(definition)
        inputs = [f"{name}.sh", "torch.py", "program", "check_image.py"]
        entries[name] = {
            **PROMISE,
            "serves": {"cpu": SERVES[name]},
            "backends": SERVES[name][-1:],
            "definition": f"{name}.def",
            "inputs": inputs,
        }
    (folder / "images.yaml").write_text(dump_yaml(entries))
    return folder
