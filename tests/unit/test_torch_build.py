"""Which build of torch is chosen, and where it is fetched: real pip, local indexes."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch_build
from torch_build import OFF, choose, find_cause, find_index, requirements_for

from rankbench.launch.images.build import fetched
from rankbench.launch.images.store import load_images
from tiny_images import write_containers

pytestmark = pytest.mark.unit


class Quiet(SimpleHTTPRequestHandler):
    def __init__(self, *arguments: object, asked: list[str], directory: str) -> None:
        self.asked = asked
        super().__init__(*arguments, directory=directory)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        self.asked.append(self.path.split("/")[1])
        super().do_GET()

    def log_message(self, *_: object) -> None:
        pass


class Index:
    """A package index in the layout of PEP 503, and the wheels in it."""

    def __init__(self, root: Path, address: str, asked: list[str]) -> None:
        self.root, self.address, self.asked = root, address, asked

    def add(
        self, name: str, version: str, content: str = "", requires: str = ""
    ) -> str:
        """Make a wheel, and return the hash of its file."""
        folder = self.root / name
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{name}-{version}-py3-none-any.whl"
        info = f"{name}-{version}.dist-info"
        files = {
            f"{name}.py": f"# {content}\n",
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\n"
            f"Version: {version}\n"
            + (f"Requires-Dist: {requires}\n" if requires else ""),
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\n"
            "Root-Is-Purelib: true\nTag: py3-none-any\n",
        }
        record = ""
        with zipfile.ZipFile(file, "w") as wheel:
            for path, text in files.items():
                wheel.writestr(path, text)
                digest = hashlib.sha256(text.encode()).digest()
                code = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
                record += f"{path},sha256={code},{len(text)}\n"
            wheel.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
        sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
        with open(folder / "index.html", "a") as page:
            link = file.name.replace("+", "%2B")
            page.write(f'<a href="{link}#sha256={sha256}">{file.name}</a>\n')
        return f"sha256:{sha256}"


def serve(root: Path) -> Iterator[Index]:
    root.mkdir()
    asked: list[str] = []
    handler = partial(Quiet, directory=str(root), asked=asked)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Index(root, f"http://127.0.0.1:{server.server_port}", asked)
        server.shutdown()


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """The only index that pip is configured for, on a machine with nothing else."""
    for index in serve(tmp_path / "configured"):
        for name in list(torch_build.os.environ):
            if name.startswith("PIP_"):
                monkeypatch.delenv(name)
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
        monkeypatch.setenv("PIP_INDEX_URL", index.address)
        yield index


@pytest.fixture
def fallback(tmp_path: Path) -> Iterator[Index]:
    yield from serve(tmp_path / "fallback")


def fetch(tmp_path: Path, requirements: str, index: str) -> list[str]:
    """Names of the wheels that an image with these requirements gets."""
    containers = write_containers(tmp_path / "containers", "gloo")
    (containers / "requirements/cpu.txt").write_text(requirements)
    image = load_images(containers, tmp_path / "images")["gloo-cpu"]
    with fetched(image, torch_index=index, log=print) as folder:
        return sorted(path.name for path in folder.iterdir())


def test_fallback_gives_torch_and_nothing_else(tmp_path, configured, fallback):
    configured.add("torch", "2.13.0", "for CUDA")
    other = configured.add("other", "1.0")
    # An attacker would publish a newer version of a package, or one that is requested.
    fallback.add("other", "1.0", "of an attacker")
    torch = fallback.add("torch", "2.13.0+cpu")
    text = (
        f"other==1.0 --hash={other}\n    # via\n    #   torch\n"
        f"torch==2.13.0+cpu \\\n    --hash={torch}\n    # via -r cpu.in\n"
    )
    found = fetch(tmp_path, text, fallback.address)
    assert found == ["other-1.0-py3-none-any.whl", "torch-2.13.0+cpu-py3-none-any.whl"]
    assert set(fallback.asked) == {"torch"}


@pytest.mark.further
def test_fallback_is_not_asked_for_other_packages(tmp_path, configured, fallback):
    torch = fallback.add("torch", "2.13.0+cpu")
    other = fallback.add("other", "1.0")
    text = f"other==1.0 --hash={other}\ntorch==2.13.0+cpu --hash={torch}\n"
    with pytest.raises(ValueError, match=r"^No matching .* found for other==1\.0"):
        fetch(tmp_path, text, fallback.address)


@pytest.mark.further
def test_configured_source_comes_first(tmp_path, configured):
    torch = configured.add("torch", "2.13.0+cpu")
    text = f"torch==2.13.0+cpu --hash={torch}\n"
    # No server answers at this address.
    assert len(fetch(tmp_path, text, "http://127.0.0.1:1")) == 1


@pytest.mark.further
def test_fallback_with_another_file_is_refused(tmp_path, configured, fallback):
    fallback.add("torch", "2.13.0+cpu", "changed")
    text = f"torch==2.13.0+cpu --hash=sha256:{64 * '0'}\n"
    with pytest.raises(ValueError, match="pip got other files than"):
        fetch(tmp_path, text, fallback.address)


def test_fallback_that_is_off(tmp_path, configured):
    configured.add("torch", "2.13.0")
    text = f"torch==2.13.0+cpu --hash=sha256:{64 * '0'}\n"
    with pytest.raises(ValueError, match="No matching distribution") as raised:
        fetch(tmp_path, text, OFF)
    said = str(raised.value)
    assert said.startswith("No matching distribution found for torch==2.13.0+cpu: ")
    assert "the index for CPU builds of torch is off (`torch_index` in site" in said


def test_the_cause_is_quoted():
    said = (
        "ERROR: Ignored the following versions that require a different python: 1.0\n"
        "ERROR: Could not find a version that satisfies the requirement torch\n"
        "ERROR: No matching distribution found for torch==2.13.0+cpu\n"
    )
    assert find_cause(said) == "No matching distribution found for torch==2.13.0+cpu"


@pytest.mark.parametrize(
    ("asked", "versions", "driver", "index", "build"),
    [
        ("auto", ["2.13.0"], False, "http://x", "cpu"),
        ("auto", [], False, "http://x", "cpu"),
        ("auto", ["2.13.0"], False, OFF, "cuda"),
        ("auto", ["2.13.0"], True, "http://x", "cuda"),
        ("auto", ["2.13.0", "2.13.0+cpu"], True, "http://x", "cpu"),
        ("auto", ["2.13.0", "2.13.0+cpu"], False, OFF, "cpu"),
        ("auto", ["2.13.0", "2.13.0+cu126"], False, "http://x", "own"),
        ("auto", ["2.13.0+cpu", "2.13.0+cu126"], True, "http://x", "own"),
        ("auto", ["2.13.0+cpu", "2.13.0+cu126"], False, "http://x", "cpu"),
        ("auto", ["2.13.0", "2.12.0+cpu"], True, "http://x", "cuda"),
        ("cuda", [], False, "http://x", "cuda"),
        ("cpu", [], True, "http://x", "cpu"),
        ("own", [], False, "http://x", "own"),
    ],
)
def test_choice(asked, versions, driver, index, build):
    found = choose(
        asked, "2.13.0", versions=versions, driver=driver, index=index, system="linux"
    )
    assert found.build == build


def test_versions_are_those_of_the_configured_source(configured):
    configured.add("torch", "2.13.0")
    configured.add("torch", "2.13.0+cu126")
    assert torch_build.find_versions() == {"2.13.0", "2.13.0+cu126"}


def test_hashes_of_the_images_protect_the_quickstart(monkeypatch):
    release = {"torch": "2.13.0", "torchvision": "0.28.0"}
    here = torch_build.HASHED_CPU
    monkeypatch.setattr(torch_build.sys, "platform", here[0])
    monkeypatch.setattr(torch_build.platform, "machine", lambda: here[1])
    monkeypatch.setattr(torch_build.sys, "version_info", (3, 11, 9))
    for build in ("cpu", "cuda"):
        for entry in requirements_for(build, release).values():
            assert "--hash=sha256:" in entry
    monkeypatch.setattr(torch_build.sys, "version_info", (3, 12, 0))
    assert requirements_for("cpu", release)["torch"] == "torch==2.13.0+cpu\n"
    assert "--hash=" in requirements_for("cuda", release)["torch"]
    # For a version that the user pinned, no hashes are recorded.
    own = requirements_for("cuda", {**release, "torch": "2.14.0"})
    assert own["torch"] == "torch===2.14.0\n"


def test_bad_input(monkeypatch, capsys):
    with pytest.raises(ValueError, match=r"torch_index: 'no' is neither an address"):
        find_index("no", "torch_index")
    monkeypatch.setenv("TORCH", "gpu")
    monkeypatch.setattr(sys, "argv", ["torch_build.py"])
    assert torch_build.main() == 2
    assert (
        "TORCH: 'gpu' is not a build of torch (known: auto, cpu"
        in capsys.readouterr().err
    )


@pytest.fixture(scope="module")
def venv(tmp_path_factory) -> Path:
    """An empty environment, of which each test gets a copy."""
    place = tmp_path_factory.mktemp("venv") / "venv"
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    return place


@pytest.fixture
def bare(tmp_path: Path, venv: Path, configured: Index, fallback: Index) -> Path:
    """A project before its torch is installed, with what the two indexes have."""
    root = tmp_path / "bare"
    requirements = root / "containers/requirements"
    requirements.mkdir(parents=True)
    shutil.copy(torch_build.__file__, root / "containers")
    pins = "torch==2.13.0\ntorchvision==0.28.0\n"
    (root / "requirements-torch.txt").write_text(pins)
    vision = f"torchvision==0.28.0 --hash={configured.add('torchvision', '0.28.0')}\n"
    # Where a hash is recorded, a requirement without a hash is refused.
    cpu = fallback.add("torch", "2.13.0+cpu")
    (requirements / "cpu.txt").write_text(f"torch==2.13.0+cpu --hash={cpu}\n{vision}")
    default = configured.add("torch", "2.13.0", requires="cudalib")
    library = configured.add("cudalib", "1.0")
    (requirements / "cuda.txt").write_text(
        f"cudalib==1.0 --hash={library}\n    # via torch\n"
        f"torch===2.13.0 --hash={default}\n    # via -r cuda.in\n{vision}"
    )
    (root / "home").mkdir()
    shutil.copytree(venv, root / ".venv", symlinks=True)
    return root


def install(root: Path, **variables: str) -> tuple[int, str]:
    """Do the Makefile's step with an empty HOME, no apt and no driver in PATH."""
    home = str(root / "home")
    done = subprocess.run(
        [root / ".venv/bin/python", "-P", "containers/torch_build.py"],
        cwd=root,
        env={**os.environ, "HOME": home, "PATH": home, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=400,
        check=False,
    )
    assert "Traceback" not in done.stdout
    return done.returncode, done.stdout


def installed(root: Path) -> set[str]:
    site = next((root / ".venv/lib").glob("python*/site-packages"))
    names = {path.name.removesuffix(".dist-info") for path in site.glob("*.dist-info")}
    return {name for name in names if not name.startswith(("pip-", "setuptools-"))}


# `make test` begins with an installation.
@pytest.mark.further
def test_install_takes_the_cpu_build_of_the_fallback(bare, fallback):
    status, said = install(bare, TORCH="cpu", TORCH_INDEX=fallback.address)
    assert status == 0, said
    assert (
        "torch: the CPU build (TORCH=cpu); for another: make quickstart TORCH=" in said
    )
    assert {"torch-2.13.0+cpu", "torchvision-0.28.0"} <= installed(bare)
    assert set(fallback.asked) == {"torch"}


@pytest.mark.further
@pytest.mark.skipif(
    (sys.platform, torch_build.platform.machine()) != torch_build.HASHED_CUDA,
    reason="hashes of CUDA's libraries are recorded for Linux on x86_64",
)
def test_libraries_of_the_default_build_are_checked(bare, configured):
    page = configured.root / "cudalib/index.html"
    genuine = page.read_text(), *configured.root.glob("cudalib/*.whl")
    content = genuine[1].read_bytes()
    page.write_text("")
    configured.add("cudalib", "1.0", "of an attacker")
    status, said = install(bare, TORCH="cuda")
    assert status == 1
    assert "DO NOT MATCH THE HASHES" in said
    assert not any(name.startswith("cudalib") for name in installed(bare))
    page.write_text(genuine[0])
    genuine[1].write_bytes(content)
    status, said = install(bare, TORCH="cuda")
    assert status == 0, said
    assert installed(bare) == {"torch-2.13.0", "torchvision-0.28.0", "cudalib-1.0"}


def test_libraries_are_all_that_torch_requires(monkeypatch):
    monkeypatch.setattr(torch_build.sys, "platform", "linux")
    monkeypatch.setattr(torch_build.platform, "machine", lambda: "x86_64")
    release = {"torch": "2.13.0", "torchvision": "0.28.0"}
    text = (torch_build.ROOT / "containers/requirements/cuda.txt").read_text()
    found = torch_build.libraries_for("cuda", release)
    cuda = [
        line
        for line in text.splitlines()
        if line.startswith(("nvidia-", "cuda-")) and not line.startswith("nvidia-ml-py")
    ]
    assert len(cuda) > 10
    assert set(cuda) <= set(found.splitlines())
    assert "\ntriton==" in found
    assert "nvidia-ml-py" not in found
    assert "deepspeed" not in {line.split("==")[0] for line in found.splitlines()}
    assert torch_build.libraries_for("cpu", release) == ""
    # For a version that the user pinned, other libraries may be needed.
    assert torch_build.libraries_for("cuda", {**release, "torch": "2.14.0"}) == ""
