"""Hosts that are reached by ssh: a launch uses some of those that a site file lists."""

from __future__ import annotations

import json
import os
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankbench.environ import for_ssh
from rankbench.launch.hosts.base import Hosts, Step
from rankbench.launch.hosts.ssh_session import Remote

# These ports are below the range from which the kernel chooses (32768 and above).
_FIRST_PORT, _PORTS = 20000, 12000


@dataclass(frozen=True, slots=True)
class Place:
    """A host that has been opened.

    Attributes:
        remote: how ssh reaches it.
        folder: of rankbench on it.
        copied: path here -> path in this folder; empty if hosts share files.
    """

    remote: Remote
    folder: str
    copied: Mapping[str, str]


@dataclass(frozen=True)
class SshHosts(Hosts):
    """The hosts of a launch.

    Attributes:
        places: the hosts, that of rank 0 first.
        shared: whether they see this machine's files at the same paths.
    """

    places: Sequence[Place]
    shared: bool
    start_within = 0.0
    # Agents first ask ranks to end, then kill them, then send their files.
    end_within = 30.0
    is_here = False
    has_ssh = True

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(place.remote.name for place in self.places)

    @property
    def share_files(self) -> bool:  # type: ignore[override]
        return self.shared

    def step(self, argv: Sequence[str], how: Step) -> list[str]:
        facts = {
            "hosts": [
                {
                    "name": place.remote.name,
                    "python": place.remote.pythons[0],
                    "control": place.remote.control,
                    "folder": place.folder,
                    "places": sorted(place.copied.items()),
                }
                for place in self.places
            ],
            "shared": self.shared,
            "first_only": how.first_host_only,
            "work": str(how.logs),
        }
        module = "rankbench.launch.hosts.ssh_step"
        return [sys.executable, "-m", module, json.dumps(facts), "--", *argv]

    def port(self, serial: int) -> int:
        """Return the port at which the ranks of a launch meet.

        Successive launches and other users use different ports, because an earlier
        launch may still hold its port.
        """
        mine = zlib.crc32(f"{os.getuid()} {Path.cwd()} {os.getpid()}".encode())
        return _FIRST_PORT + (mine * 97 + serial) % _PORTS

    def variables(self, inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
        return for_ssh(inherited)
