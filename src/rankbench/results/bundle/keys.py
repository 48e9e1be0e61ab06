"""Public keys and signatures of SSH as bytes. Nothing here decides what is valid."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

# It keeps a signature of something else, such as a commit, from counting here.
NAMESPACE = "rankbench"

# A key is a type and this number of further fields.
FIELDS = {
    "ssh-ed25519": 1,
    "ssh-rsa": 2,
    "ecdsa-sha2-nistp256": 2,
    "ecdsa-sha2-nistp384": 2,
    "ecdsa-sha2-nistp521": 2,
    "sk-ssh-ed25519@openssh.com": 2,
    "sk-ecdsa-sha2-nistp256@openssh.com": 3,
}
TYPE = re.compile(r"(?:ssh|ecdsa|sk)-[\w.@-]+", re.ASCII)
CERTIFICATE = re.compile(r"-cert-v\d\d@", re.ASCII)

_FOLDER = "signatures"
_FILE = re.compile(rf"{_FOLDER}/[0-9a-f]{{16}}\.sig")

_MAGIC, _VERSION = b"SSHSIG", (1).to_bytes(4)
_HASHES = (b"sha256", b"sha512")
_BEGIN, _END = "-----BEGIN SSH SIGNATURE-----", "-----END SSH SIGNATURE-----"
_WIDTH = 70


@dataclass(frozen=True, slots=True)
class Signature:
    """A signature, and the public key that it names.

    Attributes:
        key: the public key, as in the second field of `id_ed25519.pub`.
        data: what stands between the first and the last line of the file.
    """

    key: bytes
    data: bytes

    @property
    def key_type(self) -> str:
        """For example `ssh-ed25519`."""
        return next(_split(self.key)).decode()

    @property
    def fingerprint(self) -> str:
        """As `ssh-keygen -l` prints it: `SHA256:` and 43 characters."""
        digest = base64.b64encode(hashlib.sha256(self.key).digest()).decode()
        return f"SHA256:{digest.rstrip('=')}"

    @property
    def file(self) -> str:
        """Its name in a bundle, which only depends on the key."""
        return f"{_FOLDER}/{hashlib.sha256(self.key).hexdigest()[:16]}.sig"

    def encode(self) -> bytes:
        """The bytes of its file, as ssh-keygen writes them."""
        text = base64.b64encode(self.data).decode()
        lines = [text[i : i + _WIDTH] for i in range(0, len(text), _WIDTH)]
        return "".join(f"{line}\n" for line in (_BEGIN, *lines, _END)).encode()


def is_signature(name: str) -> bool:
    """Whether a file of a bundle has the name of a signature."""
    return _FILE.fullmatch(name) is not None


def read_signature(data: bytes) -> Signature:
    """Read a signature; the format is OpenSSH's PROTOCOL.sshsig.

    Raises:
        ValueError: it is no signature for this namespace, or has bytes without meaning.
    """
    lines = data.decode("ascii", errors="replace").split("\n")
    if lines[0] != _BEGIN or lines[-2:] != [_END, ""]:
        raise ValueError("it is no signature of SSH")
    body = _decode("".join(lines[1:-2]))
    head = _MAGIC + _VERSION
    if not body.startswith(head):
        raise ValueError("it is no signature of SSH of version 1")
    key, namespace, reserved, hashed, _ = _take(body[len(head) :], 5)
    if namespace != NAMESPACE.encode():
        raise ValueError(f"its namespace is not {NAMESPACE}")
    if reserved or hashed not in _HASHES:
        raise ValueError("its form is unknown")
    check_key(key)
    return Signature(key, body)


def read_key(kind: str, text: str) -> bytes:
    """The bytes of a public key that is written as `KIND BASE64`.

    Raises:
        ValueError: it is damaged.
    """
    key = _decode(text)
    if next(_split(key)) != kind.encode():
        raise ValueError(f"it is no key of the type {kind}")
    if kind in FIELDS:
        check_key(key)
    return key


def check_key(key: bytes) -> None:
    """Raise ValueError unless this is a whole key of a type that can sign here."""
    kind = next(_split(key)).decode(errors="replace")
    if CERTIFICATE.search(kind):
        raise ValueError("it is a certificate, not a plain key")
    if kind not in FIELDS:
        raise ValueError(f"{kind!r:.40} is an unknown type of key")
    _take(key, 1 + FIELDS[kind])


def _take(data: bytes, count: int) -> list[bytes]:
    """Exactly this number of fields."""
    fields = list(_split(data))
    if len(fields) != count:
        raise ValueError(f"it has {len(fields)} fields instead of {count}")
    return fields


def _split(data: bytes) -> Iterator[bytes]:
    """Fields, each after its length in 4 bytes; at least one."""
    place = 0
    while True:
        size = int.from_bytes(data[place : place + 4])
        field = data[place + 4 : place + 4 + size]
        if len(data) < place + 4 or len(field) != size:
            raise ValueError("it is cut off")
        yield field
        place += 4 + size
        if place == len(data):
            return


def _decode(text: str) -> bytes:
    """Decode base64, of which each value has one spelling."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("it is no base64") from error
    if base64.b64encode(data).decode() != text:
        raise ValueError("it is no base64 as SSH writes it")
    return data
