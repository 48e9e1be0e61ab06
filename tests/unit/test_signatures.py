"""Signatures of bundles: who signed what. What does not count is in attacks.py."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rankbench.record import Layout
from rankbench.results.bundle.verify import verify_bundle
from rankbench.results.bundle.write import sign_bundle, write_bundle
from rankbench.results.read.archive import unpack
from unit.keys import make_key, needs_ssh_keygen
from unit.synthetic import plan_one, write_launch
from unit.test_bundle import files_of

pytestmark = [pytest.mark.unit, pytest.mark.equipment]

COMMENT = "jdoe@secret-host"


@pytest.fixture(scope="module", autouse=True)
def _needs_ssh_keygen() -> None:
    needs_ssh_keygen()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results, an unsigned bundle of them in both forms, two keys and their owners."""
    place = tmp_path_factory.mktemp("signed")
    layout, cell = plan_one(place / "results", "single")
    write_launch(layout, cell, wanted=1)
    write_bundle(layout, place / "bundle", anonymise=False)
    write_bundle(layout, place / "bundle.tar.zst", anonymise=False)
    lines = ["# people", ""]
    for name, who in (("jdoe", "jdoe@example.org"), ("roe", "roe,boss")):
        make_key(place / name, comment=COMMENT)
        shutil.copy(place / f"{name}.pub", place / f"{name}.keys")
        lines.append(f"{who} {read(place / f'{name}.pub')}")
    (place / "allowed_signers").write_text("\n".join(lines) + "\n")
    return place


@pytest.fixture
def bundle(place: Path, tmp_path: Path) -> Path:
    """A copy of the bundle that jdoe has signed, which a test may damage."""
    copy = shutil.copytree(place / "bundle", tmp_path / "bundle")
    sign_bundle(copy, place / "jdoe")
    return copy


def read(path: Path) -> str:
    return path.read_text().strip()


def key_of(path: Path) -> str:
    words = ["ssh-keygen", "-l", "-f", str(path)]
    return f"ED25519 key {subprocess.check_output(words, text=True).split()[1]}"


# --- what a signature changes, and says -----------------------------------------------


def test_publish_signs_and_changes_nothing_else(place, tmp_path, cli):
    results = shutil.copytree(place / "results", tmp_path / "results")
    sign = [results, "--sign", place / "jdoe"]
    told = json.loads(cli("publish", "--anonymise", "--json", *sign).out)["signature"]
    assert told["key"] == key_of(place / "jdoe.pub")
    archive = results / "results.tar.zst"
    assert (results / "site/results.tar.zst").read_bytes() == archive.read_bytes()
    (tmp_path / "signed").mkdir()
    unpack(archive, tmp_path / "signed")
    write_bundle(Layout(results), tmp_path / "plain", anonymise=True)
    plain, signed = files_of(tmp_path / "plain"), files_of(tmp_path / "signed")
    assert signed.keys() - plain.keys() == {told["file"]}
    assert all(signed[name] == data for name, data in plain.items())
    data = base64.b64decode(b"".join(signed[told["file"]].splitlines()[1:-1]))
    assert b"ssh-ed25519" in data
    assert not any(word in data for word in (b"jdoe", b"secret"))
    assert verify_bundle(archive).findings == []


def test_verify_says_by_whom(place, bundle, cli):
    key = key_of(place / "jdoe.pub")
    said = cli("verify", bundle).out
    assert f"is signed with {key}; --signers or --signer would say whose" in said
    said = cli("verify", bundle, "--signer", place / "jdoe.keys").out
    assert f"SHA256SUMS is signed by jdoe with {key}\n" in said
    allowed = ("--signers", place / "allowed_signers")
    (told,) = json.loads(cli("verify", bundle, *allowed, "--json").out)["signatures"]
    (file,) = (bundle / "signatures").iterdir()
    assert told == {
        **{"file": f"signatures/{file.name}", "key": key, "fault": None},
        "principals": ["jdoe@example.org"],
    }
    signers, public = bundle.parent / "signers", read(place / "jdoe.pub")
    public = public.rpartition(" ")[0]
    lines = (
        f'jdoe expires=never {public}\n"a b,*@x.org,!eve@x.org" {public} a comment\r'
    )
    signers.write_text(lines)
    assert "by a b, *@x.org with" in cli("verify", bundle, "--signers", signers).out
    # A key of two signers counts for both.
    other = shutil.copy(place / "jdoe.keys", bundle.parent / "team.keys")
    both = ("--signer", place / "jdoe.keys", "--signer", other)
    assert "by jdoe, team with" in cli("verify", bundle, *both).out


@pytest.mark.parametrize("form", ["bundle", "bundle.tar.zst"])
def test_another_person_adds_a_signature(place, tmp_path, form, cli):
    source, path = place / form, tmp_path / form
    shutil.copytree(source, path) if source.is_dir() else shutil.copy(source, path)

    def bytes_of(path: Path) -> object:
        return files_of(path) if path.is_dir() else path.read_bytes()

    for name in ("jdoe", "roe"):
        cli("publish", path, "--sign", place / name)
    before = bytes_of(path)
    cli("publish", path, "--sign", place / "roe")  # a second time
    assert bytes_of(path) == before
    said = cli("verify", path, "--signers", place / "allowed_signers").out
    assert "by jdoe@example.org with" in said
    assert "by roe, boss with" in said


def test_a_key_of_another_type_signs(place, tmp_path, cli):
    key = tmp_path / "key"
    words = ["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", str(key)]
    subprocess.run(words, check=True)
    path = shutil.copytree(place / "bundle", tmp_path / "bundle")
    sign_bundle(path, key)
    shutil.copy(f"{key}.pub", tmp_path / "jdoe.keys")
    cli("verify", path, "--signer", tmp_path / "jdoe.keys")


# --- what does not count --------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('jdoe namespaces="git" KEY', "namespace"),
        ('jdoe valid-before="20200101" KEY', "expired"),
        ('jdoe valid-after="20990101" KEY', "not yet valid"),
        # A damaged line makes nobody a signer.
        *((line, "does not count") for line in ("jdoe KE", "!jdoe KEY")),
        ("jdoe expires=never KEY", "does not count"),
    ],
)
def test_a_key_that_is_not_for_this_or_not_now(place, bundle, tmp_path, line, why, cli):
    key, signers = read(place / "jdoe.pub").rpartition(" ")[0], tmp_path / "signers"
    own = line.replace("KEY", key).replace("KE", key[:-4])
    signers.write_text(f"roe {read(place / 'roe.pub')}\n{own}\n")
    said = cli("verify", bundle, "--signers", signers, status=1)
    assert why in said.out
    assert "signed by" not in said.out
    assert "rankbench-verify-" not in said.out


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("allowed_signers", "# nobody\n\n", "has no public keys"),
        *(
            ("jdoe.keys", text, "has no public keys")
            for text in ("", "<html>\xff", "ssh-ed25519 AAAAC3Nz")
        ),
        *(
            (f"{name}.keys", "KEY", "names the signer")
            for name in ("j doe", "*", "a,b")
        ),
        ("missing.keys", None, "is no file"),
    ],
)
def test_files_without_signers_are_bad_input(place, tmp_path, name, text, said, cli):
    path = tmp_path / name
    if text is not None:
        text = text.replace("KEY", read(place / "jdoe.pub"))
        path.write_bytes(text.encode("latin-1"))
    option = "--signer" if path.suffix else "--signers"
    found = cli("verify", option, path, place / "bundle", status=2).err
    assert found.startswith(f"rankbench: {path}")
    assert said in found


def test_a_signature_of_a_certificate_is_refused(place, tmp_path, cli):
    """It would name people, and end with its time."""
    key = make_key(tmp_path / "key")
    words = ["ssh-keygen", "-q", "-s", str(place / "roe"), "-I", "jdoe", f"{key}.pub"]
    subprocess.run(words, check=True)
    path = shutil.copytree(place / "bundle", tmp_path / "bundle")
    sign = [str(path), "--sign", f"{key}-cert.pub"]
    assert "certificate" in cli("publish", *sign, status=2).err


# --- keys that do not sign ------------------------------------------------------------


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An ssh-agent without keys."""
    if not shutil.which("ssh-agent"):
        pytest.skip("ssh-agent is not installed")
    said = subprocess.check_output(["ssh-agent", "-s"], text=True)
    for line in said.splitlines():
        name, equals, value = line.partition(";")[0].partition("=")
        if equals:
            monkeypatch.setenv(name, value)
    yield
    subprocess.run(["ssh-agent", "-k"], check=True, stdout=subprocess.DEVNULL)


def test_a_public_key_signs_by_the_agent(place, tmp_path, agent, cli):
    path = shutil.copytree(place / "bundle", tmp_path / "bundle")
    sign = ("publish", path, "--sign", shutil.copy(place / "jdoe.pub", tmp_path))
    cli(*sign, status=2)
    subprocess.run(["ssh-add", "-q", str(place / "jdoe")], check=True)
    cli(*sign)
    cli("verify", path, "--signer", place / "jdoe.keys")


def with_passphrase(folder: Path) -> Path:
    return make_key(folder / "locked", passphrase="not told")  # noqa: S106


# What lies in the place of a key, which is named by a relative path.
KEYS: dict[str, Callable[[Path], object]] = {
    "missing": lambda folder: None,
    "pipe": lambda folder: os.mkfifo(folder / "pipe"),
    "thesis.pdf": lambda folder: (folder / "thesis.pdf").write_bytes(b"%PDF \xff"),
    "locked": with_passphrase,
    "alone.pub": lambda folder: make_key(folder / "alone").unlink(),
}


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("missing", "missing does not exist"),
        ("pipe", "is no file"),
        ("thesis.pdf", "does not sign: ssh-keygen says: "),
        ("locked", "incorrect passphrase"),
        ("alone.pub", "No private key found"),
    ],
)
def test_a_key_that_cannot_sign_is_bad_input(
    place, tmp_path, key, said, monkeypatch, cli
):
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    # A program that asks on the screen must not be started.
    asked = tmp_path / "ask"
    asked.write_text(f"#!/bin/sh\ntouch {tmp_path}/was-asked\n")
    asked.chmod(0o755)
    monkeypatch.setenv("SSH_ASKPASS", str(asked))
    monkeypatch.setenv("DISPLAY", ":0")
    results = shutil.copytree(place / "results", tmp_path / "results")
    KEYS[key](tmp_path)
    before, sign = files_of(results), ("--sign", tmp_path / key)
    (line,) = cli("publish", results, *sign, status=2).err.splitlines()
    assert said in line
    assert "ssh-add" in line
    assert files_of(results) == before
    assert not (tmp_path / "was-asked").exists()


def test_no_prompt_reaches_the_terminal(place, tmp_path):
    """ssh-keygen would read a passphrase from the terminal that controls it."""
    key = with_passphrase(tmp_path)
    code = (
        "import pty, sys; sys.exit(pty.spawn([sys.executable, '-m', 'rankbench.cli',"
        f" 'publish', 'bundle', '--sign', {str(key)!r}]) >> 8)"
    )
    env = {k: v for k, v in os.environ.items() if k != "SSH_AUTH_SOCK"}
    shutil.copytree(place / "bundle", tmp_path / "bundle")
    options: Any = {"cwd": tmp_path, "env": env, "timeout": 60}
    options |= {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
    done = subprocess.run([sys.executable, "-c", code], **options, check=False)
    assert done.returncode == 2
    assert b"incorrect passphrase" in done.stdout
    assert b"Enter passphrase" not in done.stdout


def test_without_ssh_keygen(place, bundle, tmp_path, monkeypatch, cli):
    before = files_of(bundle)
    monkeypatch.setenv("PATH", str(tmp_path))
    for words in (["publish", bundle, "--sign", place / "roe"], ["verify", bundle]):
        assert "package openssh-client " in cli(*words, status=2).err
    assert files_of(bundle) == before
    cli("verify", place / "bundle")


@pytest.mark.parametrize("words", [[], ["--sign", "key", "--anonymise"]])
def test_a_bundle_gets_a_signature_and_nothing_else(place, words, cli):
    said = cli("publish", place / "bundle.tar.zst", *words, status=2).err
    assert "is a bundle already" in said
