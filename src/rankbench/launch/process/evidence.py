"""What ranks and tools printed, and where ranks stood: the evidence for a reason.

And what may explain a failure in files of the user's own. Ranks write stacks into their
logs by `faulthandler`: when their supervisor asks, when a signal ends them, and when
they crash.
"""

from __future__ import annotations

import linecache
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from rankbench.launch_spec import SEEN, LaunchSpec
from rankbench.record import first_line

# What faulthandler prints, and the traceback of an exception.
_STACK = re.compile(r"(?:Current thread|Thread) 0x\w+ .*\(most recent call first\):$")
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):$")
_FRAME = re.compile(r' +File "(?P<file>.+)", line (?P<line>\d+),? in (?P<name>.+)$')
_FATAL = re.compile(
    r"(?:Fatal Python error: |Extension modules: |  <no Python frame>).*"
    # What torch logs when it observes what the ranks of a script exchange.
    r"|.*execution_trace_observer\.cpp"
)
# What Slurm says when it ends the tasks of a step: a consequence of something else.
_ENDS_TASKS = re.compile(
    "Force Terminated|Terminating StepId|CANCELLED AT|Job step aborted"
)
_EXCEPTION = re.compile(r"[\w.]*(Error|Exception|Interrupt)\b")

_OURS = re.compile(r"/rankbench/(?:rank|launch)/|/rankbench/hooks\.py$")
_LIBRARY = re.compile(r"^<|/(?:site|dist)-packages/|/lib(?:64)?/python3[^/]*/")
_MAIN = "rank/__main__.py"

# Lines of a message that lead into C++, and say nothing to a user.
_NATIVE = re.compile(r"frame #|#\d+ |Exception raised from|C\+\+ CapturedTraceback")

_SHOWN = 3  # groups of ranks, and lines of a message
_WIDTH = 160  # characters of a line that is quoted
SILENT = "it printed nothing"


class Frame(NamedTuple):
    """A line of code in a stack."""

    file: str
    line: int
    name: str

    @property
    def is_ours(self) -> bool:
        return bool(_OURS.search(self.file))

    @property
    def is_users(self) -> bool:
        return not self.is_ours and not _LIBRARY.search(self.file)

    def __str__(self) -> str:
        text = linecache.getline(self.file, self.line).strip()
        place = f"{Path(self.file).name}:{self.line} in {self.name}"
        return f"{place}: {first_line(text, _WIDTH)}" if text else place


def find_stand(log: str) -> Frame | None:
    """Where a rank stood when it last wrote its stacks into its log.

    Returns:
        The innermost line of the user's own code in any thread; else that of rankbench
        in the main thread; None if there is no stack.
    """
    stacks = list(_read_stacks(log, _STACK))[::-1]
    for stack in stacks:
        if found := next((frame for frame in stack if frame.is_users), None):
            return found
    for stack in stacks:
        if any(frame.file.endswith(_MAIN) for frame in stack):
            return next(frame for frame in stack if frame.is_ours)
    return None


def find_raise(log: str) -> Frame | None:
    """The innermost line of the user's own code, or of ours, in the last traceback."""
    stack = next(iter(list(_read_stacks(log, _TRACEBACK))[::-1]), [])[::-1]
    users = (frame for frame in stack if frame.is_users)
    return next(users, None) or next((f for f in stack if f.is_ours), None)


def _read_stacks(log: str, head: re.Pattern[str]) -> Iterator[list[Frame]]:
    """The frames of each stack, in the order in which they are printed."""
    stack: list[Frame] | None = None
    for line in log.splitlines():
        if head.match(line):
            if stack:
                yield stack
            stack = []
        elif stack is not None and (found := _FRAME.match(line)):
            stack.append(Frame(found["file"], int(found["line"]), found["name"]))
        elif stack and not line.startswith(" "):
            yield stack
            stack = None
    if stack:
        yield stack


def describe_stands(logs: Mapping[int, str]) -> str:
    """``ranks 0, 1 at train.py:12 in main: loss.backward()``; empty without a stack."""
    ranks: dict[str, list[str]] = {}
    for rank, log in sorted(logs.items()):
        if stand := find_stand(log):
            ranks.setdefault(str(stand), []).append(str(rank))
    # Fewest ranks first: one that differs is often the culprit.
    groups = sorted(ranks.items(), key=lambda group: len(group[1]))[:_SHOWN]
    return "; ".join(f"{_name(of)} at {stand}" for stand, of in groups)


def _name(ranks: list[str]) -> str:
    few = ", ".join(ranks[:4]) + (", ..." if len(ranks) > 4 else "")
    return f"rank {few}" if len(ranks) == 1 else f"ranks {few}"


def printed_lines(log: str) -> list[str]:
    """What was printed, without blank lines and the stacks of faulthandler."""
    found, in_stack = [], False
    for line in log.splitlines():
        in_stack = bool(_STACK.match(line)) or (in_stack and line.startswith("  "))
        if not in_stack and line.strip() and not _FATAL.match(line):
            found.append(line.strip())
    return [line for line in found if not _ENDS_TASKS.search(line)] or found


def last_error_line(log: str) -> str:
    """The line of a log that tells most: the last that looks like an exception."""
    lines = printed_lines(log)
    for line in reversed(lines):
        if _EXCEPTION.match(line):
            return first_line(line)
    return first_line(lines[-1]) if lines else SILENT


def quote_words(logs: Mapping[int, str], reason: str) -> str:
    """``rank 1 printed: no licence``, if no rank's words are in the reason already."""
    lines = {rank: last_error_line(log) for rank, log in sorted(logs.items())}
    spoken = [(rank, line) for rank, line in lines.items() if line != SILENT]
    if not spoken or any(line in reason for _, line in spoken):
        return ""
    return "rank {} printed: {}".format(*spoken[0])


def last_words(log: str) -> str:
    """The last lines that a rank printed before the traceback that ends its log."""
    before = log.rpartition("Traceback (most recent call last):")
    lines = printed_lines(before[0] if before[1] else log)[-_SHOWN:]
    return " / ".join(first_line(line, _WIDTH) for line in lines)


def shorten(message: str) -> str:
    """All lines of a message that say something; of many the first and the last."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    lines = [line for line in lines if not _NATIVE.match(line)] or lines
    if len(lines) > _SHOWN:
        lines = [lines[0], "...", *lines[1 - _SHOWN :]]
    return " / ".join(first_line(line) for line in lines)


# --- what may explain that files of the user's own failed -----------------------------

# Variables that libraries read, so that no file of the user's need name them. Those of
# threads are chosen for each launch.
_OF_LIBRARIES = re.compile(
    r"(?!\w+_NUM_THREADS)(?:HF|HUGGINGFACE|TRANSFORMERS|WANDB|MLFLOW|COMET|MKL|OMP|KMP"
    r"|OPENBLAS|PYTORCH|CUDA|CUBLAS|CUDNN|ACCELERATE|DS)_\w+"
    r"|(?:https?|ftp|all|no)_proxy",
    re.IGNORECASE,
)

_SPAWNS = re.compile(
    r"^(?!\s*def )[^#'\"\n]*\b(?:spawn|start_processes|Process)\(", re.MULTILINE
)
_JOINS = "init_process_group"
# Words in a reason, and below it in logs -> what is added. The first one counts.
_HINTS = {
    # `subprocess` looks for a program.
    r"(?s)\A[^\n]*FileNotFoundError.*_execute_child": "this program is not on the PATH "
    "of the ranks: install it, or set PATH by env in the experiment",
    r"\A.*FileNotFoundError": "a file that it reads must be listed under `files`",
    "operator torchvision::": "torch and torchvision are of different builds: install "
    "both from one index",
    "_run_ninja_build": "an extension of torch is compiled: compile it once before, or "
    "raise time_limit",
    "file_baton.py": "another process compiles an extension of torch, or was ended "
    "while it did: remove the file `lock` of this extension below "
    "~/.cache/torch_extensions",
}
_SEEN = re.compile(rf"^{SEEN}.*$", re.MULTILINE)
# An exception of the script that has nothing to do with ranks of its own.
_OWN_FAULT = re.compile(
    r"(?!.*(?:ScriptError|\bProcess[ -]\d|ddress already in use)).*Error: ", re.DOTALL
)


def find_hints(
    spec: LaunchSpec,
    reason: str,
    logs: Iterable[str],
    passed: Mapping[str, str],
    inherited: Mapping[str, str] = os.environ,
) -> list[str]:
    """Sentences that end the reason of a launch with files of the user's own.

    Args:
        spec: the launch.
        reason: why it failed.
        logs: of its ranks.
        passed: variables that the ranks had.
        inherited: those that were set where rankbench was started.
    """
    sources = {
        path.relative_to(folder): path.read_text(errors="replace")
        for folder in spec.own_folders.values()
        for path in sorted(folder.rglob("*.py"))
    }
    found = []
    if spec.cell.script is not None:
        spawning = [name for name, text in sources.items() if _SPAWNS.search(text)]
        joins = any(_JOINS in text for text in sources.values())
        if spawning and joins and not _OWN_FAULT.match(reason):
            found.append(
                f"{spawning[0]} starts its own ranks, but the launcher starts them: "
                "remove that part"
            )
    said = "\n".join((reason, *logs))
    found += [hint for words, hint in _HINTS.items() if re.search(words, said)][:1]
    found += _SEEN.findall(said)[:1]
    text = "\n".join((reason, *sources.values()))
    dropped = [
        name
        for name in sorted(inherited.keys() - passed.keys())
        if _OF_LIBRARIES.fullmatch(name) or f"'{name}'" in text or f'"{name}"' in text
    ]
    if dropped:
        found.append(
            f"{', '.join(dropped)} of your environment did not reach the ranks: set it "
            "by env in site.yaml or in the experiment"
        )
    return found
