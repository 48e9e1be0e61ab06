"""A rank answers its supervisor, and ends itself if it hears nothing of it."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing

import pytest
from pretend_host import wait_until

from factories import make_shape, make_spec
from rankbench.launch.process import supervise
from rankbench.launch.process.classify import Ending, classify
from rankbench.launch.process.reports import describe_progress, read_progress
from rankbench.launch.processes import Heartbeat
from rankbench.rank.world.lifeline import ORPHANED

pytestmark = pytest.mark.unit

# A program that plays a rank which never ends.
RANK = """
import functools, pathlib, sys, time
from rankbench.rank.world.lifeline import (
    Progress, report_failure, watch_heartbeat
)
from rankbench.launch_spec import TRAINING
work = pathlib.Path(sys.argv[1])
progress = Progress(work / "progress", 0)
report = functools.partial(report_failure, work, 3)
watch_heartbeat(work / "heartbeat", 5, report, progress)
progress.enter(TRAINING)
progress.step(5)
(work / "up").touch()
time.sleep(600)
"""


def test_a_rank_says_where_it_is_and_ends_without_a_heartbeat(tmp_path):
    spec = make_spec(directory=tmp_path, heartbeat_grace=120)
    spec.progress.mkdir(parents=True)

    def describe() -> str:
        return describe_progress(read_progress(spec.progress, 1))

    with closing(Heartbeat(spec.heartbeat)) as heartbeat:
        rank = subprocess.Popen([sys.executable, "-c", RANK, str(spec.work)])

        def is_up() -> bool:
            assert rank.poll() is None
            heartbeat.beat()
            return (spec.work / "up").exists()

        wait_until(is_up, "the rank is up")
        assert describe() == "rank 0 in training"
        supervise.ask_ranks(spec, heartbeat)
        assert describe().startswith("rank 0 in training, step 5; nothing moved")
        assert rank.wait(timeout=400) == ORPHANED
    report = json.loads((spec.work / "rank3.json").read_text())
    why = "no heartbeat of the supervisor for 5 s"
    assert report["error"]["message"].startswith(why)

    # The supervisor was late but is alive, so the launch says nothing about the cell.
    ending = Ending(
        spec=make_spec(shape=make_shape(4)),
        returncode=ORPHANED,
        stopped=None,
        time_limit=60,
        reports={3: report},
        exits={3: ORPHANED},
    )
    outcome = classify(ending)
    assert (outcome.status, outcome.cause) == ("cancelled", "site")
    assert outcome.reason is not None
    assert outcome.reason.startswith("rank 3")
