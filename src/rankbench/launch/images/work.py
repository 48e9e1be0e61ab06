"""One image in the making: its log, and how far it is."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TextIO

from rankbench.launch.images import checks
from rankbench.launch.images.store import Image

# What Apptainer says when a step begins.
_STEPS = {
    "Starting build": "bootstrap",
    "Running post scriptlet": "%post",
    "Running testscript": "%test",
    "Creating SIF file": "squash",
}


@dataclass
class Work:
    """One image in the making: its log, and how far it is.

    Attributes:
        steps: seconds of each step, the last one unfinished.
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
        """Write what Apptainer says to the log, and tell of the steps.

        Raises:
            ValueError: it failed; by what it said, or its last words.
        """
        said: list[str] = []
        try:
            for line in lines:
                self.log.write(line)
                said.append(line)
                self._notice(line)
        except subprocess.CalledProcessError:
            text = "".join(said)
            cause = checks.diagnose(text) or "it says:\n  " + checks.last_words(
                text, lines=5
            ).replace("\n", "\n  ")
            raise ValueError(cause) from None

    def _notice(self, line: str) -> None:
        for sign, step in _STEPS.items():
            if line.startswith("INFO:") and sign in line and step not in self.steps:
                self.begin(step)
        if line.startswith("== "):
            # What %post says of its own progress; how long it took stands before it.
            self.say(f"%post: {line.rstrip().rpartition(': ')[2]}")
