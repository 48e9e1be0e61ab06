"""Results as they lie on disk: a folder, or one file that it is packed into.

Both may come from anywhere. A folder is read, and written into, only if it holds
nothing but plain files: a link leads elsewhere, and a pipe never ends. Unpacking writes
plain files only, below the given folder, up to a limit of bytes. The same files give
the same archive.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import zstandard

SUFFIX = ".tar.zst"

# Of an unpacked bundle. Whoever trusts the author of a larger one sets the variable.
LIMIT = "RANKBENCH_BUNDLE_MIB"
_USUAL_MIB = "256"
MAX_FILES = 500_000

_LEVEL, _WINDOW_LOG = 12, 26
_LONGEST_HEAD = 18  # Bytes of the header of a frame.

_CHUNK = 1024 * 1024
_SIP = 1024  # Compressed bytes per read, which become at most 32 MiB.
_LONGEST_NAME, _LONGEST_PART = 1000, 255  # bytes


class DamagedFileError(ValueError):
    """A file that differs from what rankbench wrote."""


def pack(root: Path, names: Sequence[str], target: Path) -> None:
    """Write these files of a folder as a tar archive, compressed by zstd."""
    parameters = zstandard.ZstdCompressionParameters.from_level(
        _LEVEL, window_log=_WINDOW_LOG, write_checksum=True
    )
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with tempfile.TemporaryFile(dir=target.parent) as plain:
            # Sorted names, with the default metadata of TarInfo.
            with tarfile.open(
                fileobj=plain, mode="w", format=tarfile.PAX_FORMAT
            ) as archive:
                for name in sorted(names):
                    member = tarfile.TarInfo(name)
                    member.size = (root / name).stat().st_size
                    with (root / name).open("rb") as source:
                        archive.addfile(member, source)
            size = plain.tell()
            plain.seek(0)
            with beside.open("wb") as file:
                compressor = zstandard.ZstdCompressor(compression_params=parameters)
                compressor.copy_stream(plain, file, size=size)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def unpack(path: Path, into: Path) -> None:
    """Unpack a bundle into an empty folder.

    Raises:
        ValueError: it is not such an archive.
        DamagedFileError: it is truncated or changed, or has members that no bundle
            has: names that lead elsewhere, links, devices, a repeated name, too many
            bytes.
        OSError: it cannot be read, or its files cannot be written.
    """
    with _plain_tar(path, into.parent) as plain:
        for member, content in _members(plain, path):
            place = into / member.name
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                with place.open("xb") as file:
                    shutil.copyfileobj(content, file, _CHUNK // 4)
            except (FileExistsError, NotADirectoryError) as error:
                said = f"{member.name!r} is a file and a folder"
                raise DamagedFileError(f"{path}: {said}") from error


@contextlib.contextmanager
def _plain_tar(path: Path, folder: Path) -> Iterator[IO[bytes]]:
    """The decompressed archive as a temporary file."""
    with path.open("rb") as file, tempfile.TemporaryFile(dir=folder) as plain:
        head = file.read(_LONGEST_HEAD)
        if not head.startswith(zstandard.FRAME_HEADER):
            raise ValueError(f"{path} is no bundle: it is not compressed by zstd")
        file.seek(0)
        window = 2**_WINDOW_LOG
        decompressor = zstandard.ZstdDecompressor(max_window_size=window)
        try:
            size = zstandard.get_frame_parameters(head).content_size
            if size == zstandard.CONTENTSIZE_UNKNOWN:
                raise DamagedFileError(f"{path} does not tell how much it unpacks to")
            limit = os.environ.get(LIMIT, _USUAL_MIB)
            if not limit.isdecimal():
                raise ValueError(f"{LIMIT}: expected a number of MiB, not {limit!r}")
            if size > int(limit) * 1024**2:
                raise DamagedFileError(
                    f"{path} unpacks to {size / 1024**2:.0f} MiB, which is more than "
                    f"{limit}: set {LIMIT} if you trust its author"
                )
            frame = decompressor.decompressobj()
            while not frame.eof and (chunk := file.read(_SIP)):
                plain.write(frame.decompress(chunk))
                if plain.tell() > size:
                    break
        except zstandard.ZstdError as error:
            raise DamagedFileError(f"{path} is damaged: {error}") from error
        if plain.tell() != size or not frame.eof:
            raise DamagedFileError(
                f"{path} is damaged: it is cut off, or longer than it says"
            )
        if frame.unused_data or file.read(1):
            raise DamagedFileError(
                f"{path} is damaged: something follows after its end"
            )
        plain.seek(0)
        yield plain


class _Careful:
    """A file that limits each read: a header may claim gigabytes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _CHUNK:
            raise ValueError("a header that is larger than any")
        return self._file.read(size)


def _members(
    plain: IO[bytes], path: Path
) -> Iterator[tuple[tarfile.TarInfo, IO[bytes]]]:
    """The members of a tar, if each of its bytes is as `pack` writes it."""
    last, count = "", 0
    try:
        careful = _Careful(plain)
        with tarfile.open(fileobj=careful, mode="r:") as archive:  # type: ignore[call-overload]
            for member in archive:
                name, count = member.name, count + 1
                if count > MAX_FILES:
                    raise DamagedFileError(f"{path} has more than {MAX_FILES} files")
                if fault := _find_fault(careful, member, last):
                    raise DamagedFileError(f"{path}: {fault}")
                last = name
                content = archive.extractfile(member)
                assert content is not None
                yield member, content
            # tarfile takes a damaged header for the end.
            plain.seek(archive.offset)
            while chunk := plain.read(_CHUNK):
                if chunk.strip(b"\0"):
                    said = f"its files end at byte {archive.offset}, and more follows"
                    raise DamagedFileError(f"{path} is damaged: {said}")
    except DamagedFileError:
        raise
    except (tarfile.TarError, ValueError, OverflowError, EOFError) as error:
        raise DamagedFileError(f"{path} is damaged: {error}") from error


def _find_fault(plain: _Careful, member: tarfile.TarInfo, last: str) -> str | None:
    """What is wrong with a member that follows on the one with the last name."""
    if not member.isreg() or member.issparse():
        return f"{member.name!r:.200} is a link, a folder or a device, not a file"
    if not is_plain_name(member.name):
        return f"{member.name!r:.200} is no name of a file in a bundle"
    if member.name <= last:
        return f"{member.name!r} stands in it twice, or not in its place"
    if not _is_canonical(plain, member):
        said = "the archive has other bytes here than rankbench writes"
        return f"{said}: at {member.name}"
    return None


def _is_canonical(plain: _Careful, member: tarfile.TarInfo) -> bool:
    """Whether the bytes around a member's content follow from its name and size."""
    plain.seek(member.offset)
    header = plain.read(member.offset_data - member.offset)
    plain.seek(member.offset_data + member.size)
    padding = plain.read(-member.size % tarfile.BLOCKSIZE)
    plainest = tarfile.TarInfo(member.name)
    plainest.size = member.size
    return header == plainest.tobuf(tarfile.PAX_FORMAT) and not padding.strip(b"\0")


def is_plain_name(name: str) -> bool:
    """Whether it is a relative path that leads down, of printable characters."""
    parts = name.split("/")
    return (
        name.isprintable()
        and "\\" not in name
        and len(name.encode()) <= _LONGEST_NAME
        and all(
            part not in ("", ".", "..") and len(part.encode()) <= _LONGEST_PART
            for part in parts
        )
    )


# Links that rankbench makes in a frozen copy of its code, which are never published.
_OWN_LINK = re.compile(r"work/code/[\w.-]+/src/rankbench/assets/[\w.]+")


def list_files(
    root: Path, *, measuring: bool = False
) -> tuple[list[str], dict[str, str]]:
    """Sorted names of the plain files below a folder; name -> fault of other entries.

    Args:
        root: the folder. It may be a link itself.
        measuring: whether rankbench may measure there: frozen code has links, and a
            launch may write anything into its folder `work`, which nobody reads.
    """
    names, odd, folders = [], {}, [""]
    while folders:
        place = folders.pop()
        # Entries may have gone meanwhile, if somebody measures.
        with contextlib.suppress(OSError), os.scandir(root / place) as entries:
            for entry in entries:
                name = f"{place}{entry.name}"
                is_folder = entry.is_dir(follow_symlinks=False)
                if is_folder:
                    is_own = measuring and entry.name == "work"
                    if not (is_own and place.startswith("records/")):
                        folders.append(f"{name}/")
                elif measuring and entry.is_symlink() and _OWN_LINK.fullmatch(name):
                    continue
                elif not entry.is_file(follow_symlinks=False):
                    odd[name] = "is a link, a pipe or a device, not a file"
                    continue
                if not measuring and not is_plain_name(name):
                    odd[name] = "is no name of a file in a bundle"
                elif not is_folder:
                    names.append(name)
    return sorted(names), odd


def refuse_links(root: Path) -> list[str]:
    """The names of the plain files of a result folder.

    Raises:
        ValueError: something else is in it, which would lead elsewhere.
    """
    names, odd = list_files(root, measuring=True)
    for name, what in odd.items():
        raise ValueError(
            f"{root}/{name} {what}: nothing is read or written there; put a copy of "
            "the files in its place"
        )
    return names


@contextlib.contextmanager
def open_folder(path: Path) -> Iterator[Path]:
    """The folder of this path, or a temporary one with the contents of an archive.

    Raises:
        ValueError: the path leads to nothing; or as `unpack`.
    """
    if not path.exists():
        raise ValueError(f"{path} does not exist: give results or a bundle")
    if path.is_dir():
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="rankbench-") as place:
        unpack(path, Path(place))
        yield Path(place)


@contextlib.contextmanager
def open_results(path: Path) -> Iterator[Path]:
    """A result directory with its plan and records, for as long as it is needed.

    A bundle is unpacked into a temporary folder. It is not verified.

    Raises:
        ValueError: the path leads to no results; the message says what was expected.
    """
    with open_folder(path) as root:
        if not (root / "plan.json").exists():
            raise ValueError(f"{path} has no plan.json: no experiment was run here")
        refuse_links(root)
        yield root
