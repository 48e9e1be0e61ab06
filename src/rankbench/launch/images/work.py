"""The making of one image: its log and its steps."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TextIO

from rankbench.launch.images import checks
from rankbench.launch.images.store import Image

# Message of Apptainer at the begin of a step -> name of the step.
_STEPS = {
    "Starting build": "bootstrap",
    "Running post scriptlet": "%post",
    "Running testscript": "%test",
    "Creating SIF file": "squash",
}


@dataclass
class Work:
    """The making of one image.

    Attributes:
        steps: step -> its seconds; 0 for the current step.
    """

    image: Image
    log: TextIO
    tell: Callable[[str], None]
    steps: dict[str, float] = field(default_factory=dict)
    _begun: float = field(default_factory=time.monotonic)
    _step_begun: float = 0.0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun

    def say(self, text: str) -> None:
        line = f"{self.image.name}  {self.seconds:4.0f} s  {text}"
        print(f"== {line}", file=self.log, flush=True)
        self.tell(line)

    def begin(self, step: str) -> None:
        self.end()
        self.steps[step], self._step_begun = 0.0, time.monotonic()
        self.say(step)

    def end(self) -> None:
        if self.steps:
            seconds = time.monotonic() - self._step_begun
            self.steps[next(reversed(self.steps))] = round(seconds, 1)

    def follow(self, lines: Iterable[str]) -> None:
        """Write the output of Apptainer to the log, and report its steps.

        Raises:
            ValueError: Apptainer failed; says why, or has the end of its output.
        """
        said: list[str] = []
        try:
            for line in lines:
                self.log.write(line)
                said.append(line)
                self._notice(line)
        except subprocess.CalledProcessError:
            text = "".join(said)
            cause = checks.diagnose(text) or "its log ends:\n  " + checks.last_words(
                text, lines=5
            ).replace("\n", "\n  ")
            raise ValueError(cause) from None

    def _notice(self, line: str) -> None:
        for sign, step in _STEPS.items():
            if line.startswith("INFO:") and sign in line and step not in self.steps:
                self.begin(step)
        if line.startswith("== "):
            # A message of %post about its progress; the seconds before it are dropped.
            self.say(f"%post: {line.rstrip().rpartition(': ')[2]}")
