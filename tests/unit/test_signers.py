"""Files of signers: each damaged line is refused, which ssh-keygen would ignore."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rankbench.cli import main
from rankbench.results.bundle.signatures import read_signers

pytestmark = [pytest.mark.unit, pytest.mark.equipment]

if not shutil.which("ssh-keygen"):
    pytest.skip("ssh-keygen is not installed", allow_module_level=True)

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDqfiqBU/ZeSe1AVd0q2Z3MxNkq3XfbPxwqTBDSNR7qm"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no public keys"),
        ("# nobody\n\n", "has no public keys"),
        (f"jdoe {KEY}\nroe\n", "line 2: expected PRINCIPALS [OPTIONS] KEYTYPE KEY"),
        (KEY, "for a list of public keys: --signer"),
        (f"jdoe {KEY[:-4]}", "line 1: its key is damaged"),
        (f"jdoe {KEY[:-3]}", "line 1: its key is damaged"),
        (f"jdoe ssh-rsa {KEY.split()[1]}", "line 1: its key is damaged"),
        (f"jdoe expires=never {KEY}", "line 1: expected PRINCIPALS"),
        (f'jdoe valid-before="soon" {KEY}', "line 1: expected PRINCIPALS"),
        (f'jdoe namespaces="git {KEY}', "line 1: expected PRINCIPALS"),
        (f"!jdoe {KEY}", "line 1: it names nobody"),
        (f"jdoe {KEY} \x1b[2J", "line 1: expected PRINCIPALS"),
        ("\xff", "is no text"),
        ("#" * 2**20 + "##", "is longer than 1 MiB"),
    ],
)
def test_signers_that_do_not_parse_are_bad_input(
    tmp_path: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "allowed_signers"
    path.write_bytes(text.encode("latin-1"))
    assert main(["verify", "--signers", str(path), str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.isprintable()
    assert line.startswith(f"rankbench: {path}")
    assert said in line


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("jdoe.keys", "", "has no public keys"),
        ("jdoe.keys", "<html>", "line 1: expected KEYTYPE KEY"),
        ("jdoe.keys", f'jdoe namespaces="git" {KEY}', "line 1: expected KEYTYPE KEY"),
        ("j doe.keys", KEY, "names the signer"),
        ("*.keys", KEY, "names the signer"),
        ("a,b.keys", KEY, "names the signer"),
    ],
)
def test_a_list_of_keys_that_does_not_parse_is_bad_input(
    tmp_path: Path, name: str, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert main(["verify", "--signer", str(path), str(tmp_path)]) == 2
    assert said in capsys.readouterr().err
    missing = str(tmp_path / "missing.keys")
    assert main(["verify", "--signer", missing, str(tmp_path)]) == 2


def test_every_form_of_a_line_is_read(tmp_path: Path) -> None:
    path = tmp_path / "allowed_signers"
    options = (
        'namespaces="git,rankbench",valid-after="20200101",valid-before="20990101Z"'
    )
    lines = [
        f"jdoe {KEY}",
        f'"a b,roe" {KEY} a comment',
        f"*@example.org,!eve@example.org\t{options} {KEY}\r",
        f"ca cert-authority {KEY}",
    ]
    path.write_text("\n".join(lines))
    signers = read_signers(path, [])
    assert signers is not None
    names = [name for name, _ in signers.keys]
    assert names == ["jdoe", "a b", "roe", "*@example.org", "ca"]
