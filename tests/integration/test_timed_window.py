"""What a launch writes into the results, and when: nothing while it is timed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest

from contract.test_reasons import SUPERVISOR
from evidence import read_record
from factories import make_cell, make_shape, make_spec
from rankbench.launch.job.claim import claim_next
from rankbench.launch_spec import COLLECTIVES, STAGES, LaunchOptions, LaunchSpec

pytestmark = [pytest.mark.integration, pytest.mark.equipment]

RANKS = 2
WRITES = "write,pwrite64,writev,pwritev,pwritev2,sendfile,ftruncate,fallocate"
CALLS = f"{WRITES},mmap,fsync,fdatasync"


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> tuple[LaunchSpec, list[str]]:
    """A launch of DDP, and what strace saw its processes write, map and sync."""
    if not shutil.which("strace"):
        pytest.skip("strace is not installed: apt-get install strace")
    folder = tmp_path_factory.mktemp("launch")
    spec = make_spec(
        directory=claim_next(folder)[1],
        cell=make_cell(
            topology="1x2", launcher="manual", data="synthetic", epochs=None, steps=20
        ),
        shape=make_shape(RANKS, cores_per_rank=0),
        data_dir=folder,
        options=LaunchOptions(collectives=True),
        python=sys.executable,
        heartbeat_grace=1e9,
    )
    spec.write()
    trace = ["strace", "-f", "-y", "--seccomp-bpf", "-e", CALLS, "-o", folder / "calls"]
    subprocess.run(
        [*trace, sys.executable, "-c", SUPERVISOR, spec.file], check=True, timeout=300
    )
    return spec, (folder / "calls").read_text().splitlines()


def find_writes(spec: LaunchSpec, calls: list[str]) -> dict[str, list[tuple[str, str]]]:
    """Thread -> the files of the launch that it wrote to, and what, in order."""
    call = re.compile(
        rf"(\d+) +\w*(?:{WRITES.replace(',', '|')})\(\d+"
        rf"<{re.escape(str(spec.directory))}/([^>]+)>(?:, \"((?:\\.|[^\"])*))?"
    )
    written: dict[str, list[tuple[str, str]]] = {}
    for found in filter(None, map(call.match, calls)):
        written.setdefault(found[1], []).append((found[2], found[3] or ""))
    return written


def test_no_rank_maps_a_file_of_the_results_for_writing(traced):
    spec, calls = traced
    mapped = [line for line in calls if "mmap(" in line]
    assert any("MAP_PRIVATE" in line for line in mapped)
    assert not [
        line for line in mapped if f"<{spec.directory}" in line and "SHARED" in line
    ]


def test_no_rank_writes_to_the_results_while_it_is_timed(traced):
    written = find_writes(*traced)
    of_ranks = [
        calls for calls in written.values() if calls[0][0].startswith("work/progress/")
    ]
    assert len(of_ranks) == RANKS
    # No other thread of a rank writes: only the supervisor and the parent of the ranks.
    assert len(written) == RANKS + 2
    for calls in of_ranks:
        # The first byte of an entry is the stage.
        stages = [
            int(re.match(r"\\(\d)", entry)[1])
            for place, entry in calls
            if place.startswith("work/progress/")
        ]
        assert stages == list(range(1, len(STAGES)))
        begins = [i for i, (_, entry) in enumerate(calls) if entry.startswith(r"\3")]
        assert len(begins) == 1
        following = calls[begins[0] + 1]
        assert following[0].startswith("work/progress/"), calls
        assert following[1].startswith(rf"\{COLLECTIVES}")


def test_a_launch_syncs_what_it_keeps_and_keeps_few_files(traced):
    """However many ranks it has: clusters limit files, and syncs there are slow."""
    spec, calls = traced
    record = read_record(spec.directory / "record.json")
    assert record["status"] == "ok", record["reason"]
    synced = re.findall(r"f(?:data)?sync\(\d+<([^>]+)>", "\n".join(calls))
    folder = str(spec.directory)
    assert [re.sub(r"/\.(\w+\.\w+)\..*", r"/\1", path) for path in synced] == [
        *(f"{folder}/steps.npz", folder),
        *(f"{folder}/record.json", folder),
    ]
    # No rank has printed anything; the launcher has said where they meet.
    assert {path.name for path in spec.directory.iterdir()} == {
        *("claim.json", "record.json", "steps.npz"),
        "launcher.log",
    }
