"""Training scripts that leave the loop, or the steps, to a library."""

from __future__ import annotations

import importlib.util
import re
import sys

import pytest
from scripts_ranks import SCRIPTS, STEPS, WARMUP, Launch, run_by, run_script
from test_scripts import MODULE, PHASES, check

pytestmark = [pytest.mark.contract, pytest.mark.equipment]


def require(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install --no-deps {package}")


def test_transformers(tmp_path):
    require("transformers")
    script = SCRIPTS / "transformers_trainer.py"
    accumulation = "2"
    check(run_script(tmp_path, script, accumulation), PHASES)


def test_accelerate(tmp_path):
    require("accelerate")
    check(run_script(tmp_path, SCRIPTS / "accelerate_loop.py"), PHASES)


def test_lightning(tmp_path):
    require("lightning")
    check(run_script(tmp_path, SCRIPTS / "lightning_trainer.py"), PHASES)


def test_deepspeed(tmp_path):
    require("deepspeed")
    script = SCRIPTS / "deepspeed_loop.py"
    stage = "3"
    launch = run_script(tmp_path, script, stage)
    check(launch, PHASES)
    # The hook ends the script within the next step.
    assert _last_step(launch) == WARMUP + STEPS


def test_horovod(tmp_path):
    require("horovod")
    horovodrun = ["horovod.runner.launch", "-np", "2", "--gloo", "--disable-cache"]
    rank = [sys.executable, "-m", MODULE[1]]
    launch = run_by([*horovodrun, *rank], tmp_path, SCRIPTS / "horovod_loop.py")
    check(launch, PHASES)
    # It prints every fourth step, after the step; and one broadcasts the optimizer.
    assert _last_step(launch) == (WARMUP + STEPS - 1) // 4 * 4


def _last_step(launch: Launch) -> int:
    """The number of the last step that rank 0 has printed."""
    return int(re.findall(r"^step (\d+)", launch.log(0), re.MULTILINE)[-1])
