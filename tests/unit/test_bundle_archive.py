"""Archives of others: no file outside the folder, and no unlimited memory."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
import zstandard

from rankbench.results.read import archive

pytestmark = pytest.mark.unit

Member = tuple[tarfile.TarInfo, bytes]


def make_member(name: str, data: bytes = b"{}", **changes: object) -> Member:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    for key, value in changes.items():
        setattr(member, key, value)
    return member, data


def write_archive(path: Path, *members: Member, end: bytes = b"") -> Path:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as file:
        for member, data in members:
            file.addfile(member, io.BytesIO(data))
    path.write_bytes(zstandard.compress(plain.getvalue() + end))
    return path


def link(name: str, kind: bytes, target: str) -> Member:
    return make_member(name, b"", type=kind, linkname=target)


SIGNATURE = "signatures/0123456789abcdef.sig"
HOSTILE = {
    "absolute": [make_member("/evil.json")],
    "upwards": [make_member("../evil")],
    "within": [make_member("records/../../evil")],
    "backslash": [make_member("records\\..\\evil")],
    "dot": [make_member("./manifest.json")],
    "empty part": [make_member("records//evil")],
    "escape": [make_member("records/\x1b[2Jevil")],
    "newline": [make_member("records/evil\nname")],
    "long": [make_member("a/" * 600 + "evil")],
    "symlink": [link("records", tarfile.SYMTYPE, "/etc")],
    "hard link": [link("records", tarfile.LNKTYPE, "/etc/passwd")],
    "device": [link("zero", tarfile.CHRTYPE, "")],
    "pipe": [link("pipe", tarfile.FIFOTYPE, "")],
    "folder": [link("records", tarfile.DIRTYPE, "")],
    "twice": [make_member("manifest.json"), make_member("manifest.json", b"[]")],
    "file and folder": [make_member("records"), make_member("records/evil")],
    "signature upwards": [make_member("signatures/../../evil.sig")],
    "signature symlink": [link(SIGNATURE, tarfile.SYMTYPE, "/etc/passwd")],
    "signature hard link": [link(SIGNATURE, tarfile.LNKTYPE, "manifest.json")],
    "signature pipe": [link(SIGNATURE, tarfile.FIFOTYPE, "")],
    "signature twice": [make_member(SIGNATURE), make_member(SIGNATURE, b"[]")],
    "signatures folder": [link("signatures", tarfile.DIRTYPE, "")],
    "signatures link": [link("signatures", tarfile.SYMTYPE, "/etc")],
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_member_that_no_bundle_has_is_refused(tmp_path, kind, cli):
    good = make_member("a/first.json")
    path = write_archive(tmp_path / "evil.tar.zst", good, *HOSTILE[kind])
    before = sorted(tmp_path.iterdir())
    out = cli("verify", path, status=1).out
    assert out.startswith("evil.tar.zst: ")
    assert out.isprintable() or out.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before
    assert not Path("/evil.json").exists()


@pytest.mark.parametrize(
    ("limit", "value", "said"),
    [
        ("MAX_BYTES", 50_000, "more than"),
        ("MAX_FILES", 3, "more than 3 files"),
    ],
)
def test_a_bomb_is_refused(tmp_path, monkeypatch, limit, value, said):
    monkeypatch.setattr(archive, limit, value)
    members = [make_member(f"{i}.json", bytes(20_000)) for i in range(5)]
    path = write_archive(tmp_path / "bomb.tar.zst", *members)
    (tmp_path / "into").mkdir()
    with pytest.raises(archive.DamagedFileError, match=said):
        archive.unpack(path, tmp_path / "into")


def test_a_size_that_is_not_told_is_refused(tmp_path):
    path = write_archive(tmp_path / "one.tar.zst", make_member("a.json", bytes(9999)))
    plain = zstandard.decompress(path.read_bytes())
    parameters = zstandard.ZstdCompressionParameters(write_content_size=False)
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    path.write_bytes(compressor.compress(plain))
    with pytest.raises(archive.DamagedFileError, match="does not tell"):
        archive.unpack(path, tmp_path)


def test_a_header_that_claims_much_is_not_read(tmp_path):
    """The extended header of a member is read into memory as a whole."""
    plain = io.BytesIO()
    huge = tarfile.TarInfo("huge")
    huge.type, huge.size = tarfile.XHDTYPE, 2**32
    plain.write(huge.tobuf(tarfile.PAX_FORMAT))
    plain.write(bytes(10_240))
    path = tmp_path / "huge.tar.zst"
    path.write_bytes(zstandard.compress(plain.getvalue()))
    with pytest.raises(archive.DamagedFileError, match="larger than any"):
        archive.unpack(path, tmp_path)


@pytest.mark.parametrize("more", [b"more", b"\x50\x2a\x4d\x18\x04\0\0\0more"])
def test_what_follows_the_archive_is_refused(tmp_path, more):
    path = write_archive(tmp_path / "one.tar.zst", make_member("a.json"))
    path.write_bytes(path.read_bytes() + more)
    with pytest.raises(archive.DamagedFileError, match="something follows"):
        archive.unpack(path, tmp_path)


def test_a_sparse_file_is_refused(tmp_path):
    headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}
    headers |= {"GNU.sparse.realsize": str(2**40), "GNU.sparse.name": "sparse"}
    member = make_member("sparse", b"0\n".ljust(512, b"\0"), pax_headers=headers)
    path = write_archive(tmp_path / "sparse.tar.zst", member)
    (tmp_path / "into").mkdir()
    with pytest.raises(archive.DamagedFileError):
        archive.unpack(path, tmp_path / "into")


def test_what_is_no_archive_is_bad_input(tmp_path, cli):
    path = tmp_path / "thesis.pdf"
    path.write_bytes(b"%PDF-1.7")
    assert (
        "is no bundle: it is not compressed by zstd"
        in cli("verify", path, status=2).err
    )


CHANGES = {
    **{"mode": 0o777, "mtime": 1, "uid": 7, "uname": "jdoe", "linkname": "x"},
    "pax_headers": {"comment": "x"},
}


@pytest.mark.parametrize("changes", [{name: CHANGES[name]} for name in CHANGES])
def test_another_header_is_found_where_it_is(tmp_path, changes):
    members = [make_member("a.json"), make_member("sub/b.json", **changes)]
    path = write_archive(tmp_path / "two.tar.zst", *members)
    (tmp_path / "into").mkdir()
    with pytest.raises(
        archive.DamagedFileError, match=r"other bytes here .* at sub/b\.json"
    ):
        archive.unpack(path, tmp_path / "into")


def test_a_byte_behind_a_file_is_found(tmp_path):
    path = write_archive(tmp_path / "two.tar.zst", *map(make_member, ("a", "b")))
    plain = bytearray(zstandard.decompress(path.read_bytes()))
    plain[512 + 100] = 1
    path.write_bytes(zstandard.compress(bytes(plain)))
    with pytest.raises(archive.DamagedFileError, match=r"other bytes here .* at a"):
        archive.unpack(path, tmp_path)


def test_files_in_another_order_are_refused(tmp_path):
    path = write_archive(tmp_path / "two.tar.zst", *map(make_member, ("b", "a")))
    with pytest.raises(archive.DamagedFileError, match="'a' stands in it"):
        archive.unpack(path, tmp_path)


def test_what_is_packed_is_unpacked(tmp_path):
    """A long name and one of other letters have headers of their own."""
    names = ["a.json", "long/" * 60 + "b.json", "sub/ü.json"]
    for name in names:
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(name * 100)
    archive.pack(tmp_path / "root", names, tmp_path / "x.tar.zst")
    (tmp_path / "into").mkdir()
    archive.unpack(tmp_path / "x.tar.zst", tmp_path / "into")
    assert all((tmp_path / "into" / name).read_text() == name * 100 for name in names)


def test_bytes_after_the_end_are_found(tmp_path):
    path = write_archive(tmp_path / "a.tar.zst", make_member("a"), end=b"hidden" * 100)
    with pytest.raises(archive.DamagedFileError, match="more follows"):
        archive.unpack(path, tmp_path)


def test_a_damaged_header_is_no_end_of_the_archive(tmp_path):
    """Python's tarfile stops there, as if no member followed."""
    path = write_archive(tmp_path / "b.tar.zst", *map(make_member, ("a", "b", "c")))
    data = bytearray(zstandard.decompress(path.read_bytes()))
    data[2 * 512 + 150] ^= 1  # The checksum of the second header.
    path.write_bytes(zstandard.compress(bytes(data)))
    (tmp_path / "into").mkdir()
    with pytest.raises(
        archive.DamagedFileError, match=r"files end at byte 1024, and more foll"
    ):
        archive.unpack(path, tmp_path / "into")
