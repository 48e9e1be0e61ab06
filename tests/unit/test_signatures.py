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

import pytest

from rankbench.cli import main
from rankbench.record import Layout
from rankbench.results.bundle import sign_bundle, unpack, verify_bundle, write_bundle
from rankbench.results.read.archive import list_files, pack
from unit.keys import make_key, needs_ssh_keygen
from unit.synthetic import make_cell, plan_cell, write_launches, write_plan
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
    cell = plan_cell(make_cell("single"))
    layout = write_plan(place / "results", [cell], launches=1)
    write_launches(layout, cell, count=1, wanted=1)
    write_bundle(layout, place / "bundle", anonymise=False)
    names, _ = list_files(place / "bundle")
    pack(place / "bundle", names, place / "bundle.tar.zst")
    for name in ("jdoe", "roe"):
        make_key(place / name, comment=COMMENT)
        shutil.copy(place / f"{name}.pub", place / f"{name}.keys")
    public = {name: read(place / f"{name}.pub") for name in ("jdoe", "roe")}
    lines = [f"jdoe@example.org {public['jdoe']}", f"roe,boss {public['roe']}"]
    (place / "allowed_signers").write_text("# people\n\n" + "\n".join(lines) + "\n")
    return place


@pytest.fixture
def bundle(place: Path, tmp_path: Path) -> Path:
    """A copy of the bundle that jdoe has signed, which a test may damage."""
    copy = shutil.copytree(place / "bundle", tmp_path / "bundle")
    sign_bundle(copy, place / "jdoe")
    return copy


@pytest.fixture
def verify(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Status and output."""

    def verify(*words: str | Path) -> tuple[int, str]:
        status = main(["verify", *map(str, words)])
        said = capsys.readouterr()
        return status, said.out + said.err

    return verify


def read(path: Path) -> str:
    return path.read_text().strip()


def signature_of(bundle: Path) -> Path:
    (path,) = (bundle / "signatures").iterdir()
    return path


def key_of(path: Path) -> str:
    words = ["ssh-keygen", "-l", "-f", str(path)]
    return f"ED25519 key {subprocess.check_output(words, text=True).split()[1]}"


# --- what a signature changes, and says -----------------------------------------------


def test_publish_signs_and_changes_nothing_else(place, tmp_path, cli):
    results = shutil.copytree(place / "results", tmp_path / "results")
    sign = [str(results), "--sign", str(place / "jdoe")]
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
    lines = signed[told["file"]].splitlines()
    data = base64.b64decode(b"".join(lines[1:-1]))
    assert b"ssh-ed25519" in data
    assert b"jdoe" not in data
    assert b"secret" not in data
    assert verify_bundle(archive).findings == []


def test_verify_says_by_whom(place, bundle, verify):
    key = key_of(place / "jdoe.pub")
    status, said = verify(bundle)
    assert status == 0
    assert f"is signed with {key}; --signers or --signer would say whose" in said
    status, said = verify(bundle, "--signer", place / "jdoe.keys")
    assert status == 0
    assert f"SHA256SUMS is signed by jdoe with {key}\n" in said
    status, said = verify(bundle, "--signers", place / "allowed_signers", "--json")
    assert status == 0
    (told,) = json.loads(said)["signatures"]
    assert told == {
        "file": f"signatures/{signature_of(bundle).name}",
        "key": key,
        "principals": ["jdoe@example.org"],
        "fault": None,
    }


@pytest.mark.parametrize("form", ["bundle", "bundle.tar.zst"])
def test_another_person_adds_a_signature(place, tmp_path, form, verify):
    source, path = place / form, tmp_path / form
    shutil.copytree(source, path) if source.is_dir() else shutil.copy(source, path)
    for name in ("jdoe", "roe"):
        sign = [str(path), "--sign", str(place / name)]
        assert main(["publish", *sign]) == 0
    before = files_of(path) if path.is_dir() else path.read_bytes()
    assert main(["publish", *sign]) == 0, "a second time"
    assert (files_of(path) if path.is_dir() else path.read_bytes()) == before
    status, said = verify(path, "--signers", place / "allowed_signers")
    assert status == 0, said
    assert "by jdoe@example.org with" in said
    assert "by roe, boss with" in said
    if path.is_dir():
        names = files_of(source)
        assert all((path / name).read_bytes() == data for name, data in names.items())


def test_a_key_of_another_type_signs(place, tmp_path, verify):
    key = tmp_path / "key"
    words = ["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", str(key)]
    subprocess.run(words, check=True)
    path = shutil.copytree(place / "bundle", tmp_path / "bundle")
    sign_bundle(path, key)
    shutil.copy(f"{key}.pub", tmp_path / "jdoe.keys")
    assert verify(path, "--signer", tmp_path / "jdoe.keys")[0] == 0


# --- what does not count --------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ('namespaces="git"', "namespace"),
        ('valid-before="20200101"', "expired"),
        ('valid-after="20990101"', "not yet valid"),
    ],
)
def test_a_key_that_is_not_for_this_or_not_now(
    place, bundle, tmp_path, options, why, verify
):
    signers = tmp_path / "signers"
    signers.write_text(f"jdoe {options} {read(place / 'jdoe.pub')}\n")
    status, said = verify(bundle, "--signers", signers)
    assert status == 1
    assert why in said
    assert "signed by" not in said
    assert "rankbench-verify-" not in said


def test_a_damaged_line_makes_nobody_a_signer(place, bundle, tmp_path, verify):
    key = read(place / "jdoe.pub").rpartition(" ")[0]
    signers = tmp_path / "signers"
    for line in (f"jdoe {key[:-4]}", f"!jdoe {key}", f"jdoe expires=never {key}"):
        signers.write_text(f"roe {read(place / 'roe.pub')}\n{line}\n")
        status, said = verify(bundle, "--signers", signers)
        assert status == 1
        assert f"does not count in {signers}" in said
    signers.write_text(f'{line}\n"a b,*@x.org,!eve@x.org" {key} a comment\r')
    status, said = verify(bundle, "--signers", signers)
    assert status == 0, said
    assert "by a b, *@x.org with" in said


@pytest.mark.parametrize(
    ("option", "name", "text", "said"),
    [
        ("--signers", "allowed_signers", "# nobody\n\n", "has no public keys"),
        ("--signer", "jdoe.keys", "", "has no public keys"),
        ("--signer", "jdoe.keys", "<html>\xff", "has no public keys"),
        ("--signer", "jdoe.keys", "ssh-ed25519 AAAAC3Nz", "has no public keys"),
        ("--signer", "j doe.keys", "KEY", "names the signer"),
        ("--signer", "*.keys", "KEY", "names the signer"),
        ("--signer", "a,b.keys", "KEY", "names the signer"),
        ("--signer", "missing.keys", None, "is no file"),
    ],
)
def test_files_without_signers_are_bad_input(
    place, tmp_path, option, name, text, said, verify
):
    path = tmp_path / name
    if text is not None:
        text = text.replace("KEY", read(place / "jdoe.pub"))
        path.write_bytes(text.encode("latin-1"))
    status, out = verify(option, path, place / "bundle")
    assert status == 2
    assert out.startswith(f"rankbench: {path}")
    assert said in out


def test_a_key_of_two_signers_counts_for_both(place, bundle, tmp_path, verify):
    other = shutil.copy(place / "jdoe.keys", tmp_path / "team.keys")
    both = ["--signer", place / "jdoe.keys", "--signer", other]
    status, said = verify(bundle, *both)
    assert status == 0, said
    assert "by jdoe, team with" in said


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


def test_a_public_key_signs_by_the_agent(place, tmp_path, agent, verify):
    path = shutil.copytree(place / "bundle", tmp_path / "bundle")
    key = shutil.copy(place / "jdoe.pub", tmp_path / "elsewhere.pub")
    sign = ["publish", str(path), "--sign", str(key)]
    assert main(sign) == 2
    subprocess.run(["ssh-add", "-q", str(place / "jdoe")], check=True)
    assert main(sign) == 0
    assert verify(path, "--signer", place / "jdoe.keys")[0] == 0


def missing(folder: Path) -> Path:
    return folder / "missing"


def a_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


def garbage(folder: Path) -> Path:
    (folder / "thesis.pdf").write_bytes(b"%PDF-1.7 \xff")
    return folder / "thesis.pdf"


def with_passphrase(folder: Path) -> Path:
    return make_key(folder / "locked", passphrase="not told")  # noqa: S106


def public_alone(folder: Path) -> Path:
    make_key(folder / "alone").unlink()
    return folder / "alone.pub"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (missing, "missing does not exist"),
        (a_pipe, "is no file"),
        (garbage, "does not sign: ssh-keygen says: "),
        (with_passphrase, "incorrect passphrase"),
        (public_alone, "No private key found"),
    ],
)
def test_a_key_that_cannot_sign_is_bad_input(
    place, tmp_path, make, said, monkeypatch, cli
):
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    # A program that asks on the screen must not be started.
    asked = tmp_path / "ask"
    asked.write_text(f"#!/bin/sh\ntouch {tmp_path}/was-asked\n")
    asked.chmod(0o755)
    monkeypatch.setenv("SSH_ASKPASS", str(asked))
    monkeypatch.setenv("DISPLAY", ":0")
    results = shutil.copytree(place / "results", tmp_path / "results")
    key, before = make(tmp_path), files_of(results)
    (line,) = cli("publish", results, "--sign", key, status=2).err.splitlines()
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
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert b"incorrect passphrase" in done.stdout
    assert b"Enter passphrase" not in done.stdout


def test_without_ssh_keygen(place, bundle, tmp_path, monkeypatch, cli):
    before = files_of(bundle)
    monkeypatch.setenv("PATH", str(tmp_path))
    sign = ["publish", str(bundle), "--sign", str(place / "roe")]
    for words in (sign, ["verify", str(bundle)]):
        assert "package openssh-client " in cli(*words, status=2).err
    assert files_of(bundle) == before
    cli("verify", place / "bundle")


@pytest.mark.parametrize("words", [[], ["--sign", "key", "--anonymise"]])
def test_a_bundle_gets_a_signature_and_nothing_else(place, words, cli):
    said = cli("publish", place / "bundle.tar.zst", *words, status=2).err
    assert "is a bundle already" in said
