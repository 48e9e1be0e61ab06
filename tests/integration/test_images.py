"""Images are built, kept, rebuilt and refused: with Apptainer, as an ordinary user."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pretend_host import wait_until
from test_containers import ONE, make_project

from conftest import ROOT, Project, copy_project
from rankbench.launch.images.build import check_builds, find_mirror, sign
from rankbench.launch.images.store import load_images
from rankbench.launch.images.verify import check_signed
from rankbench.own_files import hash_file
from rankbench.rank.world.places import find_free_port
from tiny_images import write_containers

pytestmark = pytest.mark.integration


@dataclass
class Images:
    """A folder with two tiny definitions, and commands in it."""

    root: Path
    user: list[str]
    mirror: str
    env: dict[str, str] = field(default_factory=dict)
    umask: int = -1
    given: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def dir(self) -> Path:
        return self.root / "images"

    def run(self, *arguments: str, mirror: str = "") -> subprocess.CompletedProcess:
        """`python -m rankbench.launch.images`, as the ordinary user."""
        settings = {"containers": "containers", "images": self.given}
        settings |= {"debian_mirror": mirror or self.mirror}
        module = [sys.executable, "-m", "rankbench.launch.images"]
        said = ["--settings", json.dumps(settings)]
        return self.start([*module, *arguments, *said])

    def start(self, command: list[str]) -> subprocess.CompletedProcess:
        return subprocess.run(
            [*self.user, *command],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **self.env},
            umask=self.umask,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=1200,
            check=False,
        )

    def fails(self, *arguments: str, **settings: str) -> str:
        """The message of a command that must not succeed."""
        done = self.run(*arguments, **settings)
        assert done.returncode == 1, done.stdout
        assert "Traceback" not in done.stdout
        return done.stdout


def make_images(root: Path, user: list[str]) -> Images:
    if not shutil.which("apptainer"):
        pytest.skip("no apptainer: bash tests/machine/install_apptainer.sh")
    try:
        mirror = find_mirror("auto")
    except ValueError as error:
        pytest.skip(str(error))
    based_on = {"mpi": root / "images/gloo-cpu.sif"}
    write_containers(root / "containers", "gloo", "mpi", based_on=based_on)
    for path in (root, root / "containers", root / "images"):
        path.mkdir(exist_ok=True)
        path.chmod(0o777)
    return Images(root, user, mirror)


@pytest.fixture(scope="module")
def built(open_tmp: Path, ordinary_user: list[str]) -> Images:
    """One image, built; tests leave it as it is, or put it back."""
    root = open_tmp / "built"
    root.mkdir()
    images = make_images(root, ordinary_user)
    done = images.run("gloo-cpu")
    assert done.returncode == 0, done.stdout
    assert "other users cannot read it" not in done.stdout
    return images


@pytest.fixture
def images(open_tmp: Path, ordinary_user: list[str]) -> Images:
    """Nothing built yet."""
    root = open_tmp / f"new-{time.monotonic_ns()}"
    root.mkdir()
    return make_images(root, ordinary_user)


def test_image_has_its_provenance_beside_it(built):
    known = json.loads((built.dir / "gloo-cpu.json").read_text())
    sif = built.dir / "gloo-cpu.sif"
    said = subprocess.run(["sha256sum", sif], capture_output=True, text=True)
    assert known["sha256"] == said.stdout.split()[0]
    assert known["bytes"] == sif.stat().st_size
    assert set(known["inputs"]) >= {"gloo.def", "gloo.sh", "requirements/cpu.txt"}
    assert known["apptainer"].startswith("apptainer version")
    assert "bash" in known["packages"]["dpkg"]
    bill = json.loads((built.dir / "gloo-cpu.cdx.json").read_text())
    listed = {one["name"]: one["version"] for one in bill["components"]}
    assert listed == known["packages"]["dpkg"] | known["packages"]["pip"]
    assert known["facts"]["backends"] == ["gloo", "mpi"]
    programs = {"mpirun": True, "python3": True, "torchrun": True}
    assert known["facts"]["programs"] == programs
    assert known["seconds"] > 0
    assert [p.name for p in built.dir.glob(".*.sif")] == []
    # Again, it is only compared.
    assert built.run("gloo-cpu").returncode == 0
    assert json.loads((built.dir / "gloo-cpu.json").read_text()) == known


EXPERIMENT = """
name: images
strategy: ddp
backend: [gloo, mpi]
topology: 1x2
"""

SITE = """
software: container
image_dir: {images}
debian_mirror: {mirror}
"""


@pytest.fixture(scope="module")
def workflow(built: Images) -> Project:
    """A project with these definitions, whose images lie in the folder of `built`."""
    root = built.root / "project"
    root.mkdir()
    project = copy_project(root)
    shutil.rmtree(root / "containers")
    shutil.copytree(built.root / "containers", root / "containers")
    site = SITE.format(images=built.dir, mirror=built.mirror)
    (root / "local_profile/site.yaml").write_text(site)
    project.experiment(EXPERIMENT)
    for path in (root, *root.rglob("*")):
        path.chmod(0o777)
    project.user = built.user
    return project


def make(project: Project, *flags: str, status: int = 0) -> str:
    config = [word for word in flags if "=" in word]
    flags = ("images", *(word for word in flags if "=" not in word))
    done = project.snakemake(
        "experiment=experiment.yaml", *config, flags=flags, timeout=1200
    )
    assert done.returncode == status, done.stdout
    assert "Traceback" not in done.stdout
    return done.stdout


def files(folder: Path, name: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob(f"{name}.[sj]*")}


def test_workflow_makes_what_is_needed_and_nothing_else(built, workflow):
    mpi = workflow.root / "containers/mpi.sh"
    before = files(built.dir, "gloo-cpu")
    assert "  mpi-cpu  not made yet" in make(workflow, "-n")
    make(workflow, "only=backend=gloo")
    assert files(built.dir, "mpi-cpu") == {}

    make(workflow)
    made = files(built.dir, "mpi-cpu")
    assert set(made) == {"mpi-cpu.sif", "mpi-cpu.json"}
    assert files(built.dir, "gloo-cpu") == before

    for path in (workflow.root / "containers").rglob("*"):
        os.utime(path)
    assert "images to make" not in make(workflow, "-n")
    mpi.write_text("echo working\nmake-it-fail\n")
    assert "images to make:\n  mpi-cpu  changed: mpi.sh\n" in make(workflow, "-n")
    said = make(workflow, status=1)
    assert "making the image gloo-cpu" not in said
    assert "image mpi-cpu: build failed after" in said
    assert "make-it-fail: not found" in said
    assert "+ echo working" in (workflow.root / "logs/images/mpi-cpu.log").read_text()
    # There is no incomplete image, and the previous files are unchanged.
    assert files(built.dir, "mpi-cpu") == made
    assert [path.name for path in built.dir.glob(".*.sif")] == []
    mpi.write_text("true\n")


def give(built: Images, root: Path, **given: str) -> Images:
    """A folder of images that has one of `built` under the name `own`."""
    root.mkdir()
    images = make_images(root, built.user)
    images.given = {"own": {"file": str(built.dir / "gloo-cpu.sif"), **given}}
    return images


def test_given_image_is_probed_where_it_lies(built):
    images = give(built, built.root / "given")
    done = images.run("own")
    assert done.returncode == 0, done.stdout
    known = json.loads((images.dir / "own.given.json").read_text())
    assert known["definition"] is None
    assert known["sha256"] == hash_file(built.dir / "gloo-cpu.sif")
    facts = known["facts"]
    assert facts["torch"] == "2.13.0+cpu"
    assert facts["python"].startswith("3.11")
    assert facts["programs"]["mpirun"]
    assert not facts["programs"]["deepspeed"]
    assert not (images.dir / "own.given.sif").exists()


def test_given_image_with_another_digest(built):
    images = give(built, built.root / "other", sha256=64 * "0")
    said = images.fails("own")
    assert f"the key images: own says {64 * '0'}" in said
    assert not (images.dir / "own.given.json").exists()


def test_a_given_file_that_is_not_there(built):
    file = built.root / "nowhere.sif"
    images = give(built, built.root / "nowhere", file=str(file))
    assert f"{file} is missing: correct the key images" in images.fails("own")


@pytest.mark.parametrize("fault", ["text", "arm64", "torch"])
def test_a_file_that_ranks_cannot_run_in(built, fault):
    file = built.root / f"{fault}.sif"
    images = give(built, built.root / fault, file=str(file))
    if fault == "text":
        file.write_text("no image")
    elif fault == "arm64":
        content = bytearray((built.dir / "gloo-cpu.sif").read_bytes())
        # The primary partition: squashfs, of the system, for amd64.
        place = content.index(b"\1\0\0\0\2\0\0\0" + b"02\0") + 8
        content[place : place + 3] = b"04\0"
        file.write_bytes(content)
    else:
        definition = built.root / "bare.def"
        base = built.dir / "gloo-cpu.sif"
        remove = "rm /usr/lib/python3/dist-packages/torch.py"
        definition.write_text(
            f"Bootstrap: localimage\nFrom: {base}\n%post\n    {remove}\n"
        )
        make = ["apptainer", "build", str(images.dir / "bare.sif"), str(definition)]
        done = images.start(make)
        assert done.returncode == 0, done.stdout
        shutil.move(images.dir / "bare.sif", file)
    said = images.fails("own")
    why = rf"image own: verify failed after \d+ s: rankbench cannot look into {file}: "
    assert re.search(why, said)
    assert {"text": "image", "arm64": "arm64", "torch": "No module named 'torch'"}[
        fault
    ] in said
    assert not (images.dir / "own.given.json").exists()


@dataclass
class Registry:
    """A registry of images on the loopback interface.

    Attributes:
        address: of its images.
        root: folder of its files.
    """

    address: str
    root: Path

    def push(self, name: str, layer: bytes) -> str:
        """Push an image of one layer; return its source with the digest."""
        layout = self.root / name
        blobs = layout / "blobs/sha256"
        blobs.mkdir(parents=True)
        packed = gzip.compress(layer, compresslevel=1, mtime=0)
        oci = "application/vnd.oci.image"

        def add(content: bytes, kind: str) -> dict[str, object]:
            digest = hashlib.sha256(content).hexdigest()
            (blobs / digest).write_bytes(content)
            facts = {"digest": f"sha256:{digest}", "size": len(content)}
            return {"mediaType": f"{oci}.{kind}", **facts}

        plain = f"sha256:{hashlib.sha256(layer).hexdigest()}"
        config = {
            **{"architecture": "amd64", "os": "linux", "config": {}},
            "rootfs": {"type": "layers", "diff_ids": [plain]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{oci}.manifest.v1+json",
            "config": add(json.dumps(config).encode(), "config.v1+json"),
            "layers": [add(packed, "layer.v1.tar+gzip")],
        }
        found = add(json.dumps(manifest).encode(), "manifest.v1+json")
        index = {"schemaVersion": 2, "manifests": [found]}
        (layout / "index.json").write_text(json.dumps(index))
        (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        copy = ["skopeo", "--insecure-policy", "copy", "--dest-tls-verify=false"]
        target = f"docker://{self.address}/{name}"
        subprocess.run([*copy, f"oci:{layout}", f"{target}:1"], check=True)
        return f"{target}@{found['digest']}"


def start_registry(root: Path, port: int) -> subprocess.Popen:
    settings = {
        "version": 0.1,
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(root / "files")}},
        "http": {"addr": f"127.0.0.1:{port}"},
    }
    root.mkdir(exist_ok=True)
    (root / "settings.yml").write_text(json.dumps(settings))
    command = ["docker-registry", "serve", str(root / "settings.yml")]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
    )

    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/"):
                return True
        except OSError:
            return False

    try:
        wait_until(answers, "the registry answers")
    except BaseException:
        process.kill()
        raise
    return process


@pytest.fixture
def registry(open_tmp: Path) -> Iterator[Registry]:
    for program in ("docker-registry", "skopeo"):
        if not shutil.which(program):
            pytest.skip(f"no {program}: apt-get install docker-registry skopeo")
    port = find_free_port()
    root = open_tmp / f"registry-{port}"
    process = start_registry(root, port)
    yield Registry(f"127.0.0.1:{port}", root)
    process.kill()
    process.wait()


def pack(folder: Path) -> bytes:
    """The files of a folder as a layer, all of them root's."""

    def to_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = "root"
        return member

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(folder, arcname=".", filter=to_root)
    return packed.getvalue()


def pulling(built: Images, source: str) -> Images:
    """A folder of images that has that of this source under the name `own`."""
    images = make_images(built.root / f"pull-{time.monotonic_ns()}", built.user)
    cache = images.root / "cache"
    images.env = {"APPTAINER_NOHTTPS": "true", "APPTAINER_CACHEDIR": str(cache)}
    images.given = {"own": {"source": source}}
    return images


@pytest.mark.equipment
def test_an_image_is_pulled_by_its_digest_and_probed(built, registry):
    unpacked = built.root / "unpacked"
    sif = str(built.dir / "gloo-cpu.sif")
    done = built.start(["apptainer", "build", "--sandbox", str(unpacked), sif])
    assert done.returncode == 0, done.stdout
    images = pulling(built, registry.push("group/own", pack(unpacked)))
    # Habit of a user, whose images others shall read.
    images.umask = 0o077
    done = images.run("own")
    assert done.returncode == 0, done.stdout
    ends = ("sif", "json", "cdx.json")
    files = " ".join(str(images.dir / f"own.given.{end}") for end in ends)
    assert f"other users cannot read it (umask): chmod o+r {files}" in done.stdout
    known = json.loads((images.dir / "own.given.json").read_text())
    assert known["source"].startswith(f"docker://{registry.address}/group/own@sha256:")
    assert known["sha256"] == hash_file(images.dir / "own.given.sif")
    assert known["facts"]["torch"] == "2.13.0+cpu"


@pytest.mark.equipment
@pytest.mark.parametrize("fault", ["digest", "down"])
def test_pulls_that_fail_say_why_and_leave_nothing(built, registry, tmp_path, fault):
    (tmp_path / "file").write_bytes(os.urandom(2**20))
    source = registry.push("own", pack(tmp_path))
    if fault == "digest":
        source = f"{source[:-64]}{64 * '0'}"
    else:
        source = source.replace(registry.address, "127.0.0.1:1")
    images = pulling(built, source)
    said = images.fails("own")
    assert re.search(r"image own: pull failed after \d+ s: ", said)
    assert {
        "digest": "manifest unknown",
        "down": "127.0.0.1:1: connect: connection refused",
    }[fault] in said
    assert "log: " in said
    assert not list(images.dir.glob("*own*.[sj]*"))


def test_no_apptainer(images):
    images.env = {"PATH": str(Path(sys.executable).parent)}
    runuser = shutil.which("runuser")
    images.user = [runuser, *images.user[1:]] if images.user else []
    said = images.fails("gloo-cpu")
    assert "Apptainer is not installed, or not on PATH" in said


def make_pem(folder: Path, name: str) -> Path:
    """A key pair, NAME.pem and NAME.pub.pem."""
    key, public = folder / f"{name}.pem", folder / f"{name}.pub.pem"
    make = ["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(key)]
    subprocess.run(make, check=True)
    show = ["openssl", "pkey", "-in", str(key), "-pubout", "-out", str(public)]
    subprocess.run(show, check=True)
    key.chmod(0o600)
    public.chmod(0o644)
    return key


def test_a_signed_image_that_was_changed_is_refused_by_a_cell(
    built, open_tmp, digits_file
):
    """Its sidecar agrees with the change, as if somebody had replaced both."""
    root = open_tmp / "signed"
    root.mkdir()
    keys = {name: make_pem(root, name) for name in ("author", "other")}
    sif = root / "gloo-cpu.sif"
    shutil.copy(built.dir / "gloo-cpu.sif", sif)
    image = {"name": "gloo-cpu", "file": str(sif)}
    author, other = (root / f"{name}.pub.pem" for name in keys)
    with pytest.raises(ValueError, match="no valid signature"):
        check_signed(image, [author])
    sign(sif, str(keys["author"]))
    check_signed(image, [other, author])
    with pytest.raises(ValueError, match="image_signers"):
        check_signed(image, [other])

    with open(sif, "r+b") as file:
        file.seek(sif.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    project = make_project(root / "project", digits_file, built.user, root)
    site = project.root / "local_profile/site.yaml"
    site.write_text(f"{site.read_text()}\nimage_signers: [{author}]\n")
    known = json.loads((built.dir / "gloo-cpu.json").read_text())
    wanted = load_images(project.root / "containers", root)["gloo-cpu"].recipe
    known |= {"sha256": hash_file(sif), "recipe": wanted}
    (root / "gloo-cpu.json").write_text(json.dumps(known))
    project.experiment(ONE)
    done = project.snakemake("experiment=experiment.yaml", "plots=false")
    said = "has no valid signature of the site key image_signers"
    assert said in done.stdout
    # The same in a job of its own, as on a cluster.
    (request,) = project.root.glob("results/one/requests/*.json")
    cell = request.name.removesuffix(".json")
    command = ["-m", "rankbench.launch", "results/one", cell]
    project.run([sys.executable, *command], timeout=120)
    found = [*project.root.glob(f"results/one/records/{cell}/1/*/record.json")]
    assert len(found) == 2
    for path in found:
        record = json.loads(path.read_text())
        assert (record["status"], record["cause"]) == ("cancelled", "site")
        assert said in record["reason"]


@pytest.mark.parametrize("fault", ["missing", "public", "readable", "passphrase"])
def test_a_key_that_cannot_sign_is_refused_before_the_build(tmp_path, fault):
    key = make_pem(tmp_path, "key")
    check_builds(str(key))
    if fault == "missing":
        key.unlink()
    elif fault == "public":
        key = key.with_suffix(".pub.pem")
    elif fault == "readable":
        key.chmod(0o640)
    else:
        change = ["openssl", "pkey", "-aes256", "-passout", "pass:x", "-in", str(key)]
        text = subprocess.check_output(change)
        key.write_bytes(text)
    said = "other users can read" if fault == "readable" else "does not sign: "
    with pytest.raises(ValueError, match=f"site key image_key: .*{said}"):
        check_builds(str(key))
