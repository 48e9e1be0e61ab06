"""Within the timed window a rank writes nothing into the results."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from factories import make_cell, make_shape, prepare_launch
from rankbench.environ import Place
from rankbench.launch.process.command import build_environment
from rankbench.launch_spec import COLLECTIVES, STAGES, LaunchOptions

pytestmark = [pytest.mark.integration, pytest.mark.equipment]

RANKS = 2
CALLS = "write,pwrite64,writev,pwritev,pwritev2,sendfile,ftruncate,fallocate,mmap"


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, str]]:
    """The folder of a launch of DDP, and what strace saw each rank write and map."""
    if not shutil.which("strace"):
        pytest.skip("strace is not installed: apt-get install strace")
    folder = tmp_path_factory.mktemp("launch")
    spec = prepare_launch(
        folder,
        cell=make_cell(topology="1x2", data="synthetic", epochs=None, steps=20),
        shape=make_shape(RANKS),
        phases=[
            "load",
            "transfer",
            "forward",
            "backward",
            "communication",
            "update",
        ],
        options=LaunchOptions(collectives=True),
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    env = build_environment(spec)
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = []
    for rank in range(RANKS):
        place = Place(rank=rank, size=RANKS, local_rank=rank, local_size=RANKS, node=0)
        trace = ["strace", "-f", "-y", "-e", CALLS, "-o", str(folder / f"{rank}.calls")]
        argv = [*trace, sys.executable, "-m", "rankbench.rank", spec.file]
        ranks.append(subprocess.Popen(argv, env=env | place.export()))
    assert [rank.wait(timeout=300) for rank in ranks] == [0] * RANKS, [
        path.read_text() for path in folder.glob("rank*.log")
    ]
    return folder, {
        rank: (folder / f"{rank}.calls").read_text() for rank in range(RANKS)
    }


def test_no_rank_maps_a_file_of_the_results_for_writing(calls):
    folder, seen = calls
    for text in seen.values():
        mapped = [line for line in text.splitlines() if "mmap(" in line]
        assert any("MAP_PRIVATE" in line for line in mapped)
        assert not [
            line for line in mapped if f"<{folder}" in line and "MAP_SHARED" in line
        ]


def test_no_rank_writes_to_the_results_while_it_is_timed(calls):
    folder, seen = calls
    for text in seen.values():
        written = re.findall(
            rf"\w*write\w*\(\d+<{re.escape(str(folder))}/(\S+)>, \"((?:\\.|[^\"])*)",
            text,
        )
        # The first byte of an entry is the stage.
        stages = [
            (place, int(re.match(r"\\(\d)", entry)[1]))
            for place, entry in written
            if place.startswith("work/progress/")
        ]
        assert [stage for _, stage in stages] == list(range(1, len(STAGES)))
        places = [place for place, _ in written]
        begins = [i for i, (_, entry) in enumerate(written) if entry.startswith(r"\3")]
        assert len(begins) == 1
        following = written[begins[0] + 1]
        assert following[0].startswith("work/progress/"), places
        assert following[1].startswith(rf"\{COLLECTIVES}")
