"""`rankbench compare` on real runs: the same again, and a slower one."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.integration

EXPERIMENT = """
name: small
strategy: single
model: lenet
launcher: manual
launches: 6
repeat_disturbed: false
steps: 10
warmup: 2
gate: false
"""


@pytest.mark.alone
@pytest.mark.long
def test_a_planted_slowdown_is_worse_and_the_same_again_is_not(project):
    def measure(*config: str) -> None:
        done = project.snakemake("experiment=experiment.yaml", *config, timeout=600)
        assert done.returncode == 0, done.stdout

    project.experiment(EXPERIMENT)
    measure()
    saved = project.rankbench(
        "compare", "results/small", "--save-baseline", "baseline.json"
    )
    assert saved.returncode == 0, saved.stdout
    (cell,) = json.loads((project.root / "baseline.json").read_text())["cells"]

    def measure_again_and_compare(*options: str) -> tuple[int, str]:
        measure(f"rerun={cell}")
        arguments = "baseline.json", "results/small", *options
        done = project.rankbench("compare", *arguments)
        return done.returncode, done.stdout

    # The margin allows for other work on the machine.
    status, said = measure_again_and_compare("--margin", "0.6")
    assert status == 0, said
    assert "1 equal" in said
    assert "differ in more than time" not in said

    code = project.root / "src/rankbench/rank/strategies/single.py"
    text = code.read_text()
    marker = "    def step(self, batch: Batch, mark: Mark) -> Tensor:\n"
    assert marker in text
    slow = f'{marker}        __import__("time").sleep(0.2)\n'
    code.write_text(text.replace(marker, slow))
    status, said = measure_again_and_compare()
    assert status == 1, said
    assert "1 worse" in said
    assert "code of ranks" in said
