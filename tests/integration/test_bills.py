"""Bills of materials equal the lists of packages in the images."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from conftest import ROOT, find_images
from rankbench.launch.images.verify import read_status, write_bills

pytestmark = pytest.mark.integration

PROGRAMS = ROOT / "build/validator/bin"
TOOLS = ("debsbom", "cyclonedx-py")
LIST = """
import importlib.metadata
for one in importlib.metadata.distributions():
    print(one.metadata["Name"], one.version)
"""


def ask(sif: Path, *command: str) -> dict[str, str]:
    """Name and version of each package, as a command in the image lists them."""
    words = ["apptainer", "exec", "--cleanenv", "--no-home", str(sif), *command]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return dict(line.split() for line in done.stdout.splitlines())


@pytest.mark.parametrize("name", ["gloo-cpu", "mpi-cpu"])
def test_bills_equal_the_lists_of_dpkg_and_pip(name, tmp_path):
    images = find_images(name)
    for tool in TOOLS:
        if not (PROGRAMS / tool).exists():
            pytest.skip(f"no {tool}: bash tests/machine/install_validator.sh")
    sif = images / f"{name}.sif"
    known = json.loads((images / f"{name}.json").read_text())

    def write(folder: Path) -> dict[str, bytes]:
        folder.mkdir()
        sidecar, status = folder / f"{name}.json", read_status(sif)
        written = write_bills(sidecar, known, status, tools=str(PROGRAMS))
        return {path.name: path.read_bytes() for path in written}

    bills = write(tmp_path / "one")
    if name == "gloo-cpu":
        assert write(tmp_path / "other") == bills
    debian = json.loads(bills[f"{name}.debian.cdx.json"])
    python = json.loads(bills[f"{name}.python.cdx.json"])
    assert {debian["bomFormat"], python["bomFormat"]} == {"CycloneDX"}
    # The bill also names the sources that a package was built from.
    binary = {
        package["name"]: package["version"]
        for package in debian["components"]
        if not package["purl"].endswith("arch=source")
    }
    listed = ask(sif, "dpkg-query", "-W", "-f", "${Package} ${Version}\\n")
    assert binary == listed
    found = {package["name"]: package["version"] for package in python["components"]}
    assert found == ask(sif, "python3", "-c", LIST)
