"""Tests of image recipes and requests, of given images, and of error messages."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import json
import os
import queue
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import logs
from conftest import ROOT
from rankbench.launch.hosts.base import take_lock
from rankbench.launch.images import apptainer, build, verify
from rankbench.launch.images.build import Work, fetched, make_image
from rankbench.launch.images.store import (
    SETTINGS,
    Image,
    check_folder,
    load_images,
    reason_to_make,
)
from rankbench.launch.images.verify import check_file, make_bill, read_image
from rankbench.matrix.site import read_site
from rankbench.schema import dump_yaml, load_yaml
from tiny_images import write_containers

pytestmark = pytest.mark.unit

DIGEST = "sha256:" + 64 * "0"


@pytest.fixture
def containers(tmp_path: Path) -> Path:
    return write_containers(tmp_path / "containers", "gloo", "mpi")


@pytest.fixture
def image_dir(tmp_path: Path) -> Path:
    return tmp_path / "images"


@pytest.fixture
def gloo(containers: Path, image_dir: Path) -> Image:
    return load_images(containers, image_dir)["gloo-cpu"]


def pretend_built(image: Image, content: bytes = b"an image") -> None:
    image.file.parent.mkdir(parents=True, exist_ok=True)
    image.file.write_bytes(content)
    sidecar = {
        "recipe": image.recipe,
        "inputs": image.inputs,
        "sha256": hashlib.sha256(content).hexdigest(),
        "state": image.state,
    }
    image.sidecar.write_text(json.dumps(sidecar))


def make(image: Image, tell: Callable[[str], object] = print, **settings: str) -> None:
    """Make an image where no mirror answers."""
    nowhere = {"debian_mirror": "http://localhost:1", "torch_index": "off"}
    make_image(image, tell, nowhere | settings, image.file.with_name("log"))


def test_a_bill_of_materials_lists_the_packages():
    packages = {"dpkg": {"g++": "4:12.2"}, "pip": {"A_b": "6.0"}}
    known = {"sha256": "0" * 64, "built": "2026-11-27T19:00:00+00:00"}
    known |= {"name": "gloo-cpu", "definition": "gloo.def", "packages": packages}
    bill = make_bill(known)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    purls = [one["purl"] for one in bill["components"]]
    assert purls == ["pkg:deb/debian/g%2B%2B@4%3A12.2", "pkg:pypi/a-b@6.0"]


@pytest.mark.parametrize(
    ("file", "changed"),
    [
        ("gloo.def", {"gloo-cpu"}),
        ("gloo.sh", {"gloo-cpu"}),
        ("requirements/cpu.txt", {"gloo-cpu", "mpi-cpu"}),
        ("check_image.py", {"gloo-cpu", "mpi-cpu"}),
        ("images.yaml", {"mpi-cpu"}),
    ],
)
def test_recipe_changes_with_what_the_image_is_made_from(
    containers, image_dir, file, changed
):
    before = load_images(containers, image_dir)
    if file == "images.yaml":
        entries = load_yaml(containers / file)
        entries["mpi"]["torch"] = "2.6.0"
        (containers / file).write_text(dump_yaml(entries))
    else:
        with open(containers / file, "a") as stream:
            stream.write("# more\n")
    after = load_images(containers, image_dir)
    assert {n for n in before if before[n].recipe != after[n].recipe} == changed


def test_input_that_is_missing(containers, image_dir):
    (containers / "mpi.sh").unlink()
    with pytest.raises(ValueError, match=r"images.yaml: mpi-cpu names mpi.sh"):
        load_images(containers, image_dir)


def test_reasons_to_make(containers, image_dir, gloo):
    assert reason_to_make(gloo) == "not made yet"
    pretend_built(gloo)
    # As a checkout gives them.
    os.utime(containers / "gloo.def")
    assert reason_to_make(load_images(containers, image_dir)["gloo-cpu"]) is None
    gloo.file.unlink()
    assert reason_to_make(gloo) == f"{gloo.file} is gone"
    pretend_built(gloo)
    (containers / "gloo.sh").write_text("false\n")
    changed = load_images(containers, image_dir)["gloo-cpu"]
    assert reason_to_make(changed) == "changed: gloo.sh"


def test_file_that_was_tampered_with(gloo):
    with pytest.raises(ValueError, match="is missing or of another definition"):
        read_image(gloo.describe())
    pretend_built(gloo)
    make(gloo)
    gloo.file.write_bytes(b"AN IMAGE")
    with pytest.raises(ValueError, match=r"gloo-cpu.sif is not the file .*remove"):
        make(gloo)
    gloo.file.unlink()
    with pytest.raises(ValueError, match=r"on the host .*/gloo-cpu.sif is missing: "):
        check_file(read_image(gloo.describe()))


def test_a_given_file_stays_where_it_lies_and_is_probed_again_if_it_is_another(
    containers, image_dir, tmp_path
):
    file = tmp_path / "vendor.sif"
    given = {"vendor": {"file": str(file)}}
    image = load_images(containers, image_dir, given)["vendor"]
    assert (image.file, image.sidecar) == (file, image_dir / "vendor.given.json")
    assert image.facts() is None
    image_dir.mkdir(exist_ok=True)
    pretend_built(image)
    assert reason_to_make(image) is None
    os.utime(file, ns=(0, 0))
    assert reason_to_make(image) == f"{file} is another file"


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOLCK, "no locks .*image_dir in site.yaml"),
        (errno.EACCES, "may not write .*its owner .*image_dir in site.yaml"),
        (errno.EROFS, "may not write .*image_dir in site.yaml"),
        (errno.EIO, "Input/output error: .*image_dir in site.yaml"),
    ],
)
def test_a_folder_of_images_that_cannot_be_written(gloo, monkeypatch, number, said):
    """As one that another user made, for another recipe; or one without locks."""

    def refuse(*arguments: Any, **_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(ValueError, match=rf"\(not made yet\): .*lock: .*{said}"):
        check_folder(gloo)
    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(ValueError, match=rf"image gloo-cpu: .*\.lock: .*{said}"):
        make(gloo)


def test_a_folder_of_finished_images_may_be_read_only(gloo):
    pretend_built(gloo)
    check_folder(gloo)
    make(gloo)
    assert not gloo.lock.exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        *(
            (f"vendor: {given}", r"images.*vendor")
            for given in (
                "{}",
                f"{{file: x.sif, source: 'docker://x@{DIGEST}'}}",
                "{file: x.sif, sha256: abc}",
                "{source: 'docker://registry.example/mpi:latest'}",
                f"{{source: 'library://x@{DIGEST}'}}",
                "{file: x.sif, promise: {torch: 2.9.0}}",
                "built",
            )
        ),
        *(
            (f"{name}: {{file: x.sif}}", rf"images\.{name}: .*another")
            for name in ("auto", "mpi-cpu", "own-cuda")
        ),
    ],
)
def test_given_images_that_are_not_pinned_or_have_a_reserved_name(
    tmp_path, given, said
):
    path = tmp_path / "site.yaml"
    path.write_text(f"images: {{{given}}}\n")
    with pytest.raises(ValueError, match=rf"site.yaml:1: {said}"):
        read_site(path)


@pytest.mark.parametrize(
    ("what", "cause", "remedy"),
    [
        ("fuse", "/dev/fuse", "chmod 666 /dev/fuse"),
        ("subuid", "no range of user ids", "usermod --add-subuids"),
        ("root", "lacks a capability", "use an ordinary user account"),
        ("mirror", "http://mirror.example/debian", "`debian_mirror` in site.yaml"),
        ("disk", "the disk is full", "APPTAINER_TMPDIR"),
        ("tmpdir", "is missing", "APPTAINER_TMPDIR"),
        ("noexec", "noexec", "APPTAINER_TMPDIR"),
        ("userns", "no user namespaces (Failed to", "user.max_user_namespaces"),
        ("registry", "connection refused", "registry login"),
        ("format", "is no image", "pull it again"),
    ],
)
def test_diagnosis(what, cause, remedy):
    found = apptainer.diagnose(getattr(logs, f"APPTAINER_{what.upper()}"))
    assert found
    assert cause in found
    assert remedy in found
    assert "\n" not in found


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replaces Apptainer and debootstrap."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def install(said: str = "", status: int = 0) -> None:
        script = f'#!/bin/sh\necho "{said}"\nexit {status}\n'
        for name in ("apptainer", "debootstrap"):
            (tmp_path / name).write_text(script)
            (tmp_path / name).chmod(0o755)

    return install


@pytest.mark.parametrize(
    ("said", "status", "remedy"),
    [
        ("INFO:    User not listed in /etc/subuid, trying ...", 0, "usermod"),
        ("FATAL:   'noexec' mount option set on /tmp", 255, "APPTAINER_TMPDIR"),
        ("FATAL:   nobody knows", 255, "nobody knows"),
    ],
)
def test_what_prevents_builds_is_said_before_downloads(
    gloo, programs, said, status, remedy
):
    programs(said, status)
    with pytest.raises(ValueError, match=rf"preparation failed.*{remedy}"):
        make(gloo)


def test_the_archive_has_packages_of_a_date(gloo, programs):
    programs()
    with pytest.raises(ValueError, match=r"/archive/20260101T000000Z/dists/bookworm/"):
        make(gloo, debian_archive="http://localhost:1/archive")


def test_a_user_without_a_name_gets_a_diagnosis(monkeypatch):
    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr("pwd.getpwuid", unknown)
    assert str(os.getuid()) in str(apptainer.diagnose("x not listed in /etc/subuid"))


def test_what_is_not_known_is_quoted():
    log = "+ make\n\x1b[31mmake: *** No rule\x1b[0m\n\n"
    assert apptainer.diagnose(log) is None
    assert apptainer.last_words(log) == "make: *** No rule"
    end = "its log ends:\n  + make\n  make: *** No rule"
    assert apptainer.last_words(log, lines=5) == end


@pytest.mark.parametrize(
    "lines",
    [
        ["Debian-Security|http://mirror.example/debian-security/"],
        # Debian's own images have no package lists, so their sources have no label.
        ["|http://mirror.example/debian-security/", "|cdrom:/debian/"],
    ],
)
def test_mirror_of_the_machine_itself(tmp_path, monkeypatch, lines):
    label = lines[0].partition("|")[0].partition("-")[0]
    program = tmp_path / "apt-get"
    shown = "\n".join([*lines, f"{label}|http://mirror.example/debian/"])
    program.write_text(f"#!/bin/sh\necho '{shown}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert build.find_mirror("auto") == "http://mirror.example/debian/"
    assert build.find_mirror("file:///mirror") == "file:///mirror"


def test_mirror_of_debootstrap_where_there_is_no_apt(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    program = tmp_path / "debootstrap"
    program.write_text('#!/bin/sh\nDEF_MIRROR="http://mirror.example/debian"\n')
    program.chmod(0o755)
    assert build.find_mirror("auto") == "http://mirror.example/debian"
    program.write_text("#!/bin/sh\n")
    with pytest.raises(ValueError, match=r"set `debian_mirror` in site.yaml"):
        build.find_mirror("auto")


def test_no_debootstrap(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(ValueError, match="then `dnf install debootstrap`"):
        build.find_debootstrap()


def test_mirror_that_does_not_answer(tmp_path):
    release = tmp_path / "dists" / "bookworm" / "InRelease"
    release.parent.mkdir(parents=True)
    release.write_text("Origin: Debian\n")
    build.check_mirror(tmp_path.as_uri(), "bookworm")
    for mirror in ("http://localhost:1/debian", f"{tmp_path.as_uri()}/no", "nonsense"):
        with pytest.raises(ValueError, match=r"cannot be reached: .*`debian_mirror`"):
            build.check_mirror(mirror, "bookworm")


def test_space(tmp_path):
    build.check_space({tmp_path: 0.0})
    with pytest.raises(ValueError, match=r"needs 1e\+09 GiB: make room"):
        build.check_space({tmp_path: 1e9})


def test_steps_are_told_as_they_begin(gloo):
    told: list[str] = []
    log = io.StringIO()
    work = Work(gloo, log, lambda line: told.append(line.split(" s  ")[1]))
    work.begin("fetch")

    said = ["INFO: x\n", "== 3 s: installing wheels\n", "error: it does not compile\n"]
    work.follow(said)
    assert told == ["fetch", "installing wheels"]
    assert "error: it does not compile" in log.getvalue()


def test_downloads_are_complete_or_not_there(containers, image_dir, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    requirements = containers / "requirements" / "cpu.txt"
    requirements.write_text(f"no-such-package-here==1.0 --hash={DIGEST}\n")
    image = load_images(containers, image_dir)["gloo-cpu"]
    with pytest.raises(ValueError, match=r"copy the folder \.downloads"):
        fetched(image, torch_index="off", log=print).__enter__()
    assert [p for p in (image_dir / ".downloads").iterdir() if p.is_dir()] == []

    # The downloads come from another machine, so nothing is downloaded.
    key = image.inputs["requirements/sources.txt"][:12]
    place = image_dir / ".downloads" / f"sources.txt-{key}"
    place.mkdir()
    (place / "one.whl").write_text("a wheel that both files name")
    key = image.inputs["requirements/cpu.txt"][:12]
    place = image_dir / ".downloads" / f"cpu.txt-3.11-{key}"
    place.mkdir()
    (place / "one.whl").write_text("a wheel")
    with fetched(image, torch_index="off", log=print) as folder:
        assert [path.name for path in folder.iterdir()] == ["one.whl"]
    assert (place / "one.whl").exists()


def test_second_builder_waits_and_takes_what_the_first_has_made(gloo):
    gloo.lock.parent.mkdir(parents=True)
    told: queue.Queue[str] = queue.Queue()
    with ThreadPoolExecutor() as pool:
        with take_lock(gloo.lock):
            second = pool.submit(make, gloo, told.put)
            said = "waiting: another process is making it"
            assert told.get(timeout=400).endswith(said)
            pretend_built(gloo)
        second.result(timeout=400)


def test_ci_builds_with_options_that_exist() -> None:
    text = (ROOT / ".ci/run").read_text()
    lines = text[text.index("    settings=") : text.index("    # Dead links")]
    # Commands are printed, a word to a line, instead of run; one after the other.
    pretend = "RANKBENCH_IMAGES=/images home=/home builds=() user=(printf '%s\\n')"
    script = f"{pretend}\n{lines.replace(' &', '')}"
    said = subprocess.check_output(["bash", "-c", script], text=True)
    _, *commands = said.split(".venv/bin/python\n")
    assert len(commands) == 2
    for command in commands:
        module, settings = re.fullmatch(
            r"-m\n(.*)\n.*\n--settings\n({.*})\n(?:env\n.*\n)?", command
        ).groups()
        assert json.loads(settings).keys() <= {*SETTINGS}
        assert json.loads(settings)["image_dir"] == "/images"
        done = subprocess.run(
            [sys.executable, "-m", module, "none", "--settings", settings],
            capture_output=True,
            text=True,
            check=False,
        )
        assert re.match("images: .*none", done.stderr)


def test_a_probe_that_prints_nothing(gloo, monkeypatch):
    monkeypatch.setattr(verify, "run_inside", lambda *_, **__: ["Welcome\n"])
    with pytest.raises(ValueError, match="printed no facts: Welcome"):
        verify.ask_facts(gloo, gloo.file)
