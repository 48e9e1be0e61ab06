"""What logs say about the reason of a failure: stacks, tracebacks, last words."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankbench.launch.process.evidence import (
    describe_stands,
    find_raise,
    find_stand,
    last_words,
    printed_lines,
    shorten,
)

pytestmark = pytest.mark.unit

# As Python 3.11 to 3.14 print them; the main thread comes last.
STACKS = """\
epoch 1
Thread 0x00007f0d5bfff6c0 [heartbeat] (most recent call first):
  File "/p/src/rankbench/rank/world/lifeline.py", line 120 in sleep
  File "/usr/lib/python3.12/threading.py", line 1012 in run

Current thread 0x00007f0d8a1b2740 (most recent call first):
  File "/v/lib/python3.12/site-packages/torch/_tensor.py", line 648 in backward
  File "{file}", line 2 in train
  File "{file}", line 3 in <module>
  File "<frozen runpy>", line 88 in _run_code
  File "/p/src/rankbench/rank/scripts/running.py", line 110 in run_file
  File "/p/src/rankbench/rank/__main__.py", line 70 in run_rank

Extension modules: numpy._core._multiarray_umath, torch._C (total: 20)
"""
TRACEBACK = """\
starting
no data here
Traceback (most recent call last):
  File "/p/src/rankbench/rank/__main__.py", line 70, in run_rank
    purpose.run(duty)
    ^^^^^^^^^^^^^^^^^
  File "{file}", line 2, in train
    loss.backward()
  File "/v/lib/python3.12/site-packages/torch/_tensor.py", line 648, in backward
    raise RuntimeError("no")
RuntimeError: no
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("def train():\n    loss.backward()\ntrain()\n")
    return path


@pytest.mark.parametrize(
    ("find", "log"), [(find_stand, STACKS), (find_raise, TRACEBACK)]
)
def test_the_innermost_line_of_the_users_own_code(script, find, log):
    found = find("noise\n" + log.format(file=script))
    assert str(found) == "train.py:2 in train: loss.backward()"
    # Without any, the innermost of rankbench.
    elsewhere = "/v/lib/python3.12/site-packages/x.py"
    assert "rankbench" in find(log.format(file=elsewhere)).file
    assert find("no stack") is None


def test_ranks_that_stand_at_one_line_are_told_together(script):
    log = STACKS.format(file=script)
    other = log.replace("line 2 in train", "line 9 in wait")
    assert describe_stands({0: log, 1: other, 2: log, 3: "silent"}) == (
        "rank 1 at train.py:9 in wait; "
        "ranks 0, 2 at train.py:2 in train: loss.backward()"
    )
    assert describe_stands({}) == ""


def test_last_words_are_those_before_stacks_and_tracebacks(script):
    assert printed_lines(STACKS.format(file=script)) == ["epoch 1"]
    assert last_words(TRACEBACK.format(file=script)) == "starting / no data here"
    assert last_words("") == ""


@pytest.mark.parametrize(
    ("message", "short"),
    [
        ("one", "one"),
        ("one\n\n  two\n", "one / two"),
        ("1\n2\n3\n4\n5", "1 / ... / 4 / 5"),
        ("no route\nException raised from wait at x.cpp:1\nframe #0: c10", "no route"),
        (f"-- Process 0\nTraceback\n  File\nValueError: {'x' * 999}", None),
    ],
)
def test_a_message_is_told_by_its_first_and_last_lines(message, short):
    assert shorten(message) == short or (short is None and len(shorten(message)) < 700)
