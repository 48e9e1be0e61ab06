"""What a host says of itself before anything is copied to it.

ssh.py passes this file to the host's Python as an argument of `-c`, so the host needs
nothing else. It gets the folder of rankbench, and a JSON list of paths to look for.
"""

import json
import shutil
import socket
import sys
from importlib import metadata
from pathlib import Path

FOLDERS = ("code", "data", "images", "own", "environments", "launches")
COMPARED = ("torch", "torchvision", "numpy", "horovod", "deepspeed")


# Names of the program that runs images: the same under an older name.
CONTAINER_PROGRAMS = ("apptainer", "singularity")


def version_of(package: str) -> "str | None":
    """The version of an installed package; None if it is not."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def main() -> None:
    folder, fault = Path(sys.argv[1]).expanduser(), None
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        for name in FOLDERS:
            (folder / name).mkdir(exist_ok=True)
    except OSError as error:
        fault = f"{folder}: {error.strerror}"
    facts = {
        "hostname": socket.gethostname(),
        "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "executable": sys.executable,
        "python": list(sys.version_info[:2]),
        "versions": {name: version_of(name) for name in COMPARED},
        "folder": str(folder),
        "fault": fault,
        "free": 0 if fault else shutil.disk_usage(folder).free,
        "rsync": shutil.which("rsync") is not None,
        "container": next(filter(shutil.which, CONTAINER_PROGRAMS), None),
        # A relative path is one in the folder.
        "sees": {path: (folder / path).exists() for path in json.loads(sys.argv[2])},
    }
    # A login script may print what it likes before; JSON has no such character.
    print(f"\x1e{json.dumps(facts)}\x1e")


if __name__ == "__main__":
    main()
