"""The measurement of a script, from its first training step to the last timed one."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from rankbench import hooks
from rankbench.rank.scripts import root
from rankbench.rank.scripts.counter import StepCounter
from rankbench.rank.scripts.window import Window, keep
from rankbench.rank.world.lifeline import Progress

GRACE = 5.0  # seconds that a script has to end after its measurement


class Session:
    """Observes a script that runs in this process, and ends it after the window.

    Attributes:
        window: what was measured.
        counter: what is known of its optimizers.
        root: the module that the script trains; None if that cannot be told.
        is_marked: whether the script marks its steps.
        is_complete: whether everything is measured and written.
        failure: why rankbench could not measure; None if it could.
    """

    def __init__(
        self,
        *,
        warmup: int,
        steps: int,
        local_rank: int,
        progress: Progress,
        find_device: Callable[[Session], torch.device],
        finish: Callable[[Session], None],
    ) -> None:
        """Take what to measure.

        Args:
            warmup: steps of the warm-up.
            steps: steps of the timed window.
            local_rank: number of this rank on its host.
            progress: of this rank.
            find_device: returns the device of this rank, after the first step.
            finish: writes what was measured, after the last step.
        """
        self.window = Window(
            warmup=warmup, steps=steps, local_rank=local_rank, progress=progress
        )
        self.counter = StepCounter(
            on_step=self._on_step,
            on_update=lambda: self.window.mark("update"),
            on_backward=lambda: self.window.mark("backward"),
        )
        self.root: nn.Module | None = None
        self.is_marked = False
        self.is_complete = False
        self.failure: Exception | None = None
        self._find_device, self._finish = find_device, finish
        self._search = root.RootSearch(self.counter.compute)
        self._stop_watching = lambda: None

    def begin(self) -> None:
        """Observe everything that runs in this process from now on."""
        self.counter.install()
        self._search.begin()
        hooks.listen(self._on_mark)

    def end(self) -> None:
        """Observe nothing any more."""
        self.counter.remove()
        self._search.end()
        self._stop_watching()
        hooks.listen(None)

    def _on_step(self) -> None:
        if self.is_marked:
            self.window.mark("update")
        elif self.window.ended == 0:
            self._try(self._open)
        else:
            self._end_step(None, None)

    def _on_mark(self, loss: Any, samples: Any) -> None:
        if not self.is_marked:
            self.is_marked = True
            self._try(self._open)
        else:
            self._end_step(keep(loss), samples)

    def _open(self) -> None:
        if self.root is None:
            self.root = self._search.end()
            if self.root is not None:
                self._stop_watching = root.watch(
                    self.root, self._on_forward, lambda: self.window.mark("forward")
                )
        device = self._find_device(self)
        self.window.open(device, has_phases=self.root is not None)

    def _on_forward(self) -> None:
        self.counter.compute()
        self.window.mark("load")

    def _end_step(self, loss: Any, samples: Any) -> None:
        if self.window.end_step(loss, samples):
            self.end()
            self._try(lambda: self._finish(self))
            self.is_complete = True
            print("rankbench ends the script: its steps are measured", flush=True)
            threading.Thread(target=_end_process, daemon=True).start()
            raise SystemExit(0)

    def _try(self, function: Callable[[], None]) -> None:
        """Call a function of ours; the script may catch what it raises."""
        try:
            function()
        except Exception as error:
            self.failure = error
            self.end()
            raise


def _end_process() -> None:
    """End a process that goes on although its measurement is complete."""
    time.sleep(GRACE)
    print(f"rankbench ends this process, {GRACE:g} s after its measurement", flush=True)
    os._exit(0)
