"""The rules of the house: rooms, workflow style, and what may be in git."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from make_example import fill, make_answer
from rankbench import __version__
from rankbench.schema import load_yaml

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent

pytestmark = pytest.mark.contract

# Lints of `snakemake --lint` that we do not follow, and why. The files themselves
# cannot silence them.
ALLOWED_LINTS = {
    r"Specify a conda environment or container for each rule\.": (
        "rankbench starts the image itself, inside the launcher: a rule's container "
        "would put srun inside the image"
    ),
    r"Param \w+ is a prefix of input or output file but hardcoded": (
        "a job reads plan and records in the result directory, not only its inputs"
    ),
    r"Mixed rules and functions in same snakefile\.": (
        "an input function stands beside the one rule that uses it"
    ),
    r"No log directive defined": (
        "the log of a cell belongs to the job that measures it; Snakemake removes the "
        "log of a rule before it runs"
    ),
}

# Paths of one machine, and hosts that serve packages: they differ between sites.
FORBIDDEN = {
    "path of a machine": re.compile(r"(?<![\w.})*$-])/(home|root|work|Users)/\w"),
    "package index": re.compile(
        r"\bpypi\.org|pythonhosted\.org|download\.pytorch\.org|pypi\.nvidia\.com"
        r"|(deb|security|ftp)[\w.]*\.debian\.org|archive\.ubuntu\.com"
        r"|conda\.anaconda\.org"
    ),
}
# PyTorch's index of CPU builds, which is a default in one place.
ALLOWED = [("containers/torch_build.py", "package index")]
LARGE_KIB = 1024


def run(*command: str | Path) -> tuple[int, str]:
    done = subprocess.run(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def check_with(tool: str, *arguments: str) -> None:
    """Run a tool of the `dev` extra; what it says is the failure."""
    if not (BIN / tool).exists():
        pytest.skip(f"{tool} is not installed: pip install -r requirements.lock")
    status, said = run(BIN / tool, *arguments)
    if status != 0:
        pytest.fail(said, pytrace=False)


def files_in_git() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    # The checkout may belong to another user, as in a container.
    status, names = run("git", "-c", "safe.directory=*", "ls-files", "-z")
    assert status == 0, names
    paths = [ROOT / name for name in names.split("\0") if name]
    return [path for path in paths if path.is_file()]


def test_rooms_do_not_know_each_other():
    check_with("lint-imports", "--no-cache")


def test_no_long_chain_of_imports_within_the_results():
    """Whoever follows one number to its file reads eight modules at most."""
    grimp = pytest.importorskip("grimp")  # import-linter brings grimp along.
    graph = grimp.build_graph("rankbench", exclude_type_checking_imports=True)
    room = {m for m in graph.modules if m.startswith("rankbench.results.")}
    chains: dict[str, list[str]] = {}

    def longest(module: str) -> list[str]:
        if module not in chains:
            beneath = graph.find_modules_directly_imported_by(module) & room - {module}
            chains[module] = [module, *max(map(longest, beneath), key=len, default=[])]
        return chains[module]

    chain = max(map(longest, room), key=len)
    assert len(chain) <= 8, " > ".join(chain)


def test_workflow_is_formatted():
    check_with("snakefmt", "--check", "Snakefile", "workflow")


def test_workflow_lints_are_the_known_ones():
    # The output is text, because Snakemake 9.27 prints text even for `--lint json`.
    flags = ("--profile", "local_profile", "--lint")
    _, said = run(sys.executable, "-m", "snakemake", *flags)
    found = re.findall(r"^Lints for (.+):$|^    \* (.+):$", said, re.MULTILINE)
    congratulated = "good condition" in said
    assert found or congratulated, said
    where, unknown, used = "", [], set()
    for place, title in found:
        where = place or where
        rules = [rule for rule in ALLOWED_LINTS if title and re.match(rule, title)]
        used.update(rules)
        if title and not rules:
            unknown.append(f"{where}: {title}")
    assert not unknown, "\n".join(unknown)
    assert used == set(ALLOWED_LINTS), "an allowed lint no longer occurs"


def test_files_name_no_machine_and_no_package_index():
    found, allowed = [], []
    for path in files_in_git():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for what, pattern in FORBIDDEN.items():
            for match in pattern.finditer(text):
                line = text.count("\n", 0, match.start()) + 1
                name = str(path.relative_to(ROOT))
                if (name, what) in ALLOWED:
                    allowed.append((name, what))
                else:
                    found.append(f"{name}:{line}: {what}: {match[0]}")
    assert not found, "\n".join(found)
    assert allowed == ALLOWED


def test_files_are_small_and_no_images():
    large = [
        str(path.relative_to(ROOT))
        for path in files_in_git()
        if path.stat().st_size > LARGE_KIB * 1024 or path.suffix == ".sif"
    ]
    assert not large, f"over {LARGE_KIB} KiB, or an image: {large}"


def test_lock_holds_every_dependency_with_hashes():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lock = (ROOT / "requirements.lock").read_text()
    entries = re.findall(r"^([\w.-]+)==(\S+) \\\n((?:    --hash=\S+.*\n)+)", lock, re.M)
    pinned = {canonicalize_name(name): version for name, version, _ in entries}
    assert len(pinned) == len(re.findall(r"^[\w.-]+==", lock, re.MULTILINE))

    left_out = project["tool"]["pip-tools"]["compile"]["unsafe-package"]
    assert not pinned.keys() & set(left_out)
    # Packages that talk to the driver are pure Python and not part of CUDA.
    cuda = {name for name in pinned if name.startswith(("nvidia-", "cuda-"))}
    assert cuda <= {"nvidia-ml-py"}

    extras = project["project"]["optional-dependencies"]
    wanted = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    for extra in project["tool"]["pip-tools"]["compile"]["extra"]:
        wanted += extras[extra]
    for line in wanted:
        requirement = Requirement(line)
        name = canonicalize_name(requirement.name)
        if name not in left_out:
            assert name in pinned, f"{line}: not in the lock: make lock"
            assert requirement.specifier.contains(pinned[name]), f"{line}: make lock"


def test_torch_is_pinned_apart():
    lines = (ROOT / "requirements-torch.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert {pin.name for pin in pins} == {"torch", "torchvision"}
    assert all(re.fullmatch(r"==[\d.]+", str(pin.specifier)) for pin in pins)


def test_a_release_is_described_alike_everywhere():
    cited = load_yaml(ROOT / "CITATION.cff")
    deposited = json.loads((ROOT / ".zenodo.json").read_text())
    (version, day) = re.findall(
        r"^## (\S+) - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )[0]
    assert (cited["version"], str(cited["date-released"])) == (version, day)
    assert version == __version__
    for key in ("title", "license", "keywords"):
        assert deposited[key] == cited[key]
    assert deposited["creators"] == cited["authors"]


def test_the_readme_shows_the_published_example():
    answer, readme = make_answer(), (ROOT / "README.md").read_text()
    assert fill(readme, answer) == readme
    assert answer[2].startswith("BEST ")


def test_no_two_classes_share_a_name():
    """Variants may: each is found by the name of its file."""
    places: dict[str, list[str]] = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        if path.parent.name in ("strategies", "models", "data"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(path.name)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
