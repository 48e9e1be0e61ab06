"""What rankbench adds to a training script: to each step, and to its start.

Steps: the script runs under torchrun, and blocks of steps with rankbench's hooks take
turns with blocks without them, in the same processes. The look at what ranks exchange
comes before a block, as it comes before the timed window. The step of a block is the
median over its steps of the slowest rank's time. Start: seconds from the start of
torchrun to the end of the script's first step, with rankbench and without, in turns.

    python benchmarks/scripts.py steps tests/scripts/data_parallel.py --width 512
    python benchmarks/scripts.py start tests/scripts/data_parallel.py
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import runpy
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from pairs import report

from rankbench.launch_spec import LaunchSpec

SETTLE, BLOCK = 4, 25  # steps before a block, and in a block
RANKS = 2
SOURCE = Path(__file__).resolve().parents[1] / "src"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["steps", "start"])
    parser.add_argument("--launches", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=10, help="of blocks in a launch")
    parser.add_argument(
        "--accumulation", type=int, default=1, help="backwards in a step of the script"
    )
    parser.add_argument("script", type=Path)
    parser.add_argument("args", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    measure = measure_steps if given.what == "steps" else measure_start
    found = [
        pair
        for _ in range(given.launches)
        for pair in measure(given.script.resolve(), given)
    ]
    ours, theirs = zip(*found, strict=True)
    unit = "ms" if given.what == "steps" else "s"
    report(f"{given.script.name}: {given.what} with rankbench", ours, theirs, unit=unit)


def torchrun(*command: str, folder: str) -> None:
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    argv += [f"--nproc-per-node={RANKS}", *command]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    env["PYTHONPATH"] = str(SOURCE)
    quiet = subprocess.DEVNULL
    subprocess.run(argv, check=True, env=env, cwd=folder, stdout=quiet)


def measure_steps(script: Path, given: argparse.Namespace) -> list[tuple[float, ...]]:
    """Milliseconds of a step with hooks and without, for each pair of blocks."""
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder) / "spec.json"
        shutil.copytree(script.parent, copy := Path(folder) / "script")
        how = [given.args, given.pairs, given.accumulation]
        spec.write_text(json.dumps([str(copy / script.name), *how, folder]))
        torchrun(__file__, "--rank", str(spec), folder=str(copy))
        ranks = [
            json.loads((Path(folder) / f"{rank}.json").read_text())
            for rank in range(RANKS)
        ]
    blocks = [
        1e3 * statistics.median(max(step) for step in zip(*block, strict=True))
        for block in zip(*ranks, strict=True)
    ]
    return list(zip(blocks[::2], blocks[1::2], strict=True))


def measure_start(script: Path, given: argparse.Namespace) -> list[tuple[float, ...]]:
    """Seconds to the end of the first step, for each pair of launches."""
    return [
        tuple(_first_step(script, given.args, ours=ours) for ours in (True, False))
        for _ in range(given.pairs)
    ]


def _first_step(script: Path, args: list[str], *, ours: bool) -> float:
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / script.name
        copy.write_text(_FIRST_STEP.format(folder=folder) + script.read_text())
        begun = time.time()
        try:
            if ours:
                spec = _write_spec(Path(folder), script.name, args)
                module = ("--module", "rankbench.rank")
                torchrun(*module, str(spec.file), folder=folder)
            else:
                torchrun(str(copy), *args, folder=folder)
        except subprocess.CalledProcessError:
            pass  # `_FIRST_STEP` ends the script
        ended = max(float(path.read_text()) for path in Path(folder).glob("*.time"))
        return ended - begun


# Stands before the script, and ends it after its first step.
_FIRST_STEP = """\
import os, time
from torch.optim.optimizer import register_optimizer_step_post_hook
def _stop(*_):
    with open("{folder}/" + os.environ["RANK"] + ".time", "w") as file:
        file.write(str(time.time()))
    time.sleep(1)
    os._exit(1)
register_optimizer_step_post_hook(_stop)
"""


def _write_spec(folder: Path, name: str, args: list[str]) -> LaunchSpec:
    from rankbench.matrix.candidate import shape_of
    from rankbench.matrix.catalog import load_catalog
    from rankbench.matrix.experiment import load_experiment

    path = folder / "experiment.yaml"
    lines = ["name: start", "strategy: ddp", f"topology: 1x{RANKS}", "steps: 9"]
    path.write_text("\n".join(lines))
    catalog = load_catalog()
    (cell,) = load_experiment(path, catalog, cuda=False).cells.values()
    frozen = folder / "frozen"
    frozen.mkdir()
    (frozen / name).write_text((folder / name).read_text())
    about = {"args": shlex.join(args), "samples_per_step": "1"}
    shape = shape_of(cell, catalog.strategies["ddp"])
    spec = LaunchSpec(
        directory=folder,
        cell=replace(cell, script=about, own_strategy={"file": name}),
        shape=replace(shape, cores_per_rank=0),
        data_dir=folder,
        threads=1,
        heartbeat_grace=600,
        own={"strategy": frozen / name},
    )
    spec.progress.mkdir(parents=True)
    spec.heartbeat.write_text("1")
    spec.write()
    return spec


def be_rank(spec: Path) -> None:
    """Run the script; blocks of its steps alternate between with and without hooks."""
    import torch

    from rankbench.rank.scripts.exchange import ExchangeProbe
    from rankbench.rank.scripts.session import ScriptSession
    from rankbench.rank.world.lifeline import Progress

    script, args, pairs, accumulation, folder = json.loads(spec.read_text())
    rank = int(os.environ["RANK"])
    (Path(folder) / f"progress{rank}").mkdir()
    blocks: list[list[float]] = []
    state = {"count": -20, "last": 0.0}  # steps before the first block
    steps: list[float] = []
    sessions: list[ScriptSession] = []

    def find_device(session: ScriptSession) -> torch.device:
        if session.probe is None:
            session.probe = ExchangeProbe(Path(folder) / f"exchange{rank}.json")
        return torch.device("cpu")

    def begin() -> None:
        if len(blocks) % 2 == 0:
            made = ScriptSession(
                warmup=1,
                steps=2 * BLOCK,
                local_rank=rank,
                progress=Progress(Path(folder) / f"progress{rank}", 0),
                find_device=find_device,
                finish=lambda session: None,
            )
            made.begin()
            sessions.append(made)

    def tick() -> None:
        state["count"] += 1
        last, state["last"] = state["last"], time.perf_counter()
        if state["count"] == 0:
            begin()
        elif state["count"] > SETTLE:
            steps.append(state["last"] - last)
        if state["count"] == SETTLE + BLOCK:
            blocks.append(steps.copy())
            steps.clear()
            while sessions:
                made = sessions.pop()
                assert made.ended == SETTLE + BLOCK - 1, made.ended
                assert made.probe is not None
                assert made.probe.read(1) is not None
                made.end()
            if len(blocks) == 2 * pairs:
                (Path(folder) / f"{rank}.json").write_text(json.dumps(blocks))
                os._exit(0)
            state["count"] = 0
            begin()

    plain = torch.autograd.backward
    backwards = itertools.count(1)

    def backward(*args: Any, **kwargs: Any) -> None:
        plain(*args, **kwargs)
        if next(backwards) % accumulation == 0:
            tick()

    torch.autograd.backward = backward
    sys.argv = [script, *args]
    sys.path[0] = str(Path(script).parent)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        be_rank(Path(sys.argv[2]))
    else:
        main()
