"""What a job needs on its hosts, and copying what one of them lacks.

Copies lie in a folder of rankbench on the host, under the digest of their content, so
nothing is copied twice and nothing is overwritten that another run uses.
"""

from __future__ import annotations

import hashlib
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path

from rankbench.launch.hosts.ssh_session import LostHost, Message, Session

FOLDER = "~/.cache/rankbench"  # of rankbench on each host
COPY_SECONDS = 3600.0
# rsync of a full disk says so in the middle of its messages.
_NO_ROOM = "No space left on device"


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a job needs on its hosts.

    Attributes:
        source: the folder that contains the package rankbench.
        code: a hash of it.
        data: prepared files that ranks read.
        data_dir: the folder that these are in.
        images: file of an image -> its sha256.
        own: folders with frozen copies of the user's own files, each called by the
            digest of its contents.
        native: whether ranks run in the hosts' own Python.
    """

    source: Path
    code: str
    data: Sequence[Path] = ()
    data_dir: Path
    images: Mapping[str, str] = field(default_factory=dict)
    own: Sequence[Path] = ()
    native: bool

    def files(self) -> Iterator[Path]:
        """All files and folders that hosts must see."""
        yield self.source
        yield from self.data
        yield from self.own
        yield from map(Path, self.images)


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment of Python.

    Attributes:
        prefix: its folder.
        base: the interpreter that it was made from; hosts need it at the same path.
        digest: of the names and versions of its packages.
    """

    prefix: Path
    base: str
    digest: str

    @property
    def place(self) -> str:
        """Path of its copy in the folder of rankbench on a host."""
        return f"environments/{self.digest}"


@cache
def this_environment() -> Environment | None:
    """The environment of this process; None if it is not a virtual one."""
    if sys.prefix == sys.base_prefix:
        return None
    packages = sorted(
        f"{one.name}=={one.version}"
        for one in metadata.distributions(path=[sysconfig.get_path("purelib")])
    )
    base = str(Path(sys.executable).resolve())
    text = "\n".join([sys.prefix, base, sys.version, *packages])
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return Environment(Path(sys.prefix), base, digest)


def places_of(needs: Needs) -> dict[str, str]:
    """Path here -> path in the folder of rankbench on a host."""
    places = {
        str(needs.source): f"code/{needs.code[:16]}",
        str(needs.data_dir): "data",
    }
    for folder in needs.own:
        places[str(folder)] = f"own/{folder.name}"
    for file, digest in needs.images.items():
        places[file] = f"images/{digest}.sif"
    return places


class Copies:
    """Copies to one host."""

    def __init__(
        self, session: Session, facts: Message, say: Callable[[str], None]
    ) -> None:
        self._session, self._say = session, say
        self._host: str = session.remote.name
        self._folder: str = facts["folder"]
        self._free: int = facts["free"]

    def bring(self, needs: Needs) -> dict[str, str]:
        """Copy code, data and images that the host lacks.

        Returns:
            `places_of` the needs.

        Raises:
            ValueError: there is no room, or a copy fails.
        """
        places = places_of(needs)
        source = f"{self._folder}/{places[str(needs.source)]}"
        self._sync([f"{needs.source}/rankbench"], f"{source}/")
        if needs.data:
            self._sync(list(map(str, needs.data)), f"{self._folder}/data/")
        if needs.own:
            self._sync(list(map(str, needs.own)), f"{self._folder}/own/")
        images = {f"{self._folder}/{places[f]}": f for f in needs.images}
        for path in self._lacks(list(images)):
            self._bring_image(images[path], path, needs.images[images[path]])
        return places

    def bring_environment(self, environment: Environment) -> None:
        """Copy a virtual environment unless it is there.

        Raises:
            ValueError: there is no room, or a copy fails.
        """
        place = f"{self._folder}/{environment.place}"
        if not self._lacks([place]):
            return
        size = _size_of(environment.prefix)
        self._check_room(str(environment.prefix), size)
        self._say(f"  copying Python's packages ({size >> 20} MiB) to {self._host}")
        part, was = f"{place}.part", str(environment.prefix)
        self._sync([f"{was}/"], f"{part}/", *_ENVIRONMENT)
        self._ask(do="move in", part=part, path=place, was=was)

    def _bring_image(self, file: str, path: str, digest: str) -> None:
        size = Path(file).stat().st_size
        self._check_room(file, size)
        name = Path(file).name
        self._say(f"  copying {name} ({size >> 20} MiB) to the host {self._host}")
        part = f"{path}.part"
        self._sync([file], part, "--partial")
        answer = self._ask(do="adopt", part=part, path=path, sha256=digest)
        if answer["adopted"]:
            raise ValueError(f"{self._host}: {answer['adopted']}: run again")

    def _check_room(self, file: str, size: int) -> None:
        if size > self._free:
            raise ValueError(
                f"{self._host}: {Path(file).name} has {size >> 20} MiB, and "
                f"{self._folder} has {self._free >> 20} MiB free: make room there"
            )

    def _lacks(self, paths: Sequence[str]) -> list[str]:
        if not paths:
            return []
        there = self._ask(do="have", paths=list(paths))["have"]
        return [path for path in paths if not there[path]]

    def _ask(self, **message: object) -> Message:
        try:
            return self._session.ask(**message)
        except LostHost as error:
            raise ValueError(f"{self._host}: {error}") from error

    def _sync(self, files: Sequence[str], to: str, *options: str) -> None:
        shell = shlex.join(self._session.remote.ssh("-o", "ControlMaster=no"))
        try:
            done = subprocess.run(
                [
                    *("rsync", "--archive", "--protect-args", *options),
                    *("-e", shell, "--", *files, f"{self._host}:{to}"),
                ],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=COPY_SECONDS,
                check=False,
            )
        except FileNotFoundError:
            raise ValueError(
                "this machine has no rsync: install it (shared: false copies by it)"
            ) from None
        except subprocess.TimeoutExpired as error:
            raise ValueError(f"{self._host}: {error}") from error
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["rsync failed"]
            said = next((line for line in lines if _NO_ROOM in line), lines[0])
            raise ValueError(f"{self._host}: copying {files[0]}: {said}")


# Facts about this machine are cached there.
_ENVIRONMENT = ("--exclude=/var",)


def _size_of(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(path.lstat().st_size for path in folder.rglob("*"))
