"""The measurement of a script, from its first training step to the last timed one.

Ranks wait for each other in no other way than the script lets them. The CUDA device is
synchronised at both edges of the timed window, and not in between.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rankbench import hooks
from rankbench.launch_spec import SEEN
from rankbench.rank.facts import usage
from rankbench.rank.scripts import observing
from rankbench.rank.scripts.exchange import ExchangeProbe
from rankbench.rank.training.loop import Window
from rankbench.rank.world.lifeline import Progress

# Load: until forward begins. Forward: until backward begins, with the loss function.
# Update: after backward.
PHASES = ("load", "forward", "backward", "update")
WHOLE = ("step",)


class ScriptWindow(Window):
    """The window of a script, whose steps may differ.

    Attributes:
        phases: of a step; one if the script does not let them be told apart.
        counted: what the inputs of the timed steps have counted, see
            `observing.leading_sizes`; empty if the inputs are not known.
    """

    counted: tuple[int, ...] = ()

    def count(self, sizes: tuple[int, ...]) -> None:
        """Add what the inputs of a forward count."""
        known = self.counted or (0,) * len(sizes)
        self.counted = tuple(map(sum, zip(known, sizes, strict=False)))

    def end_warmup(self) -> None:
        super().end_warmup()
        self.counted = ()

    def close(self) -> None:
        super().close()
        if np.isnan(self.warmup).any() or np.isnan(self.seconds).any():
            self.phases = WHOLE
            self.warmup = np.nansum(self.warmup, axis=1, keepdims=True)
            self.seconds = np.nansum(self.seconds, axis=1, keepdims=True)

    def read(self) -> np.ndarray:
        """Seconds of each step; NaN for a phase that a step lacks."""
        return self.clock.table()


# Steps of the warm-up that are observed for what ranks exchange: some scripts average
# every few steps.
LOOKED_AT = 8

GRACE = 5.0  # seconds that a script has to end after its measurement


@dataclass(eq=False, kw_only=True)
class ScriptSession:
    """Observes a script that runs in this process, and ends it after the window.

    The first step of the script is only used to find out where steps end; then follow
    the warm-up and the timed window.

    Attributes:
        warmup, steps: numbers of steps of the warm-up, and of the timed window.
        local_rank: number of this rank on its host.
        progress: of this rank.
        find_device: returns the device of this rank, after the first step.
        finish: writes what was measured, after the last step.
        window: what is measured; None before the first step has ended.
        ended: steps that have ended, with the first one.
        needed: steps that have to end.
        counter: what is known of its optimizers.
        root: the module that the script trains; None if that cannot be told.
        inputs: digest of its inputs in the second step, under DistributedDataParallel;
            None if they are not known.
        weights: digest of what this rank trains, after the look; None without one.
        device: device of this rank, once the first step has ended.
        opened: age of the process at that moment, in seconds.
        is_marked: whether the script marks its steps.
        is_complete: whether everything is measured and written.
        failure: why rankbench could not measure; None if it could.
        probe: looks at what ranks exchange in the first steps of the warm-up; None for
            no look. Without a warm-up, it looks at a step that is not measured.
    """

    warmup: int
    steps: int
    local_rank: int
    progress: Progress
    find_device: Callable[[ScriptSession], torch.device]
    finish: Callable[[ScriptSession], None]
    window: ScriptWindow | None = None
    ended: int = 0
    root: nn.Module | None = None
    inputs: str | None = None
    weights: str | None = None
    is_marked: bool = False
    is_complete: bool = False
    failure: Exception | None = None
    probe: ExchangeProbe | None = None

    def __post_init__(self) -> None:
        self.needed = 1 + self.warmup + self.steps
        # Of each step, as the script marks them.
        self._losses: list[Any] = []
        self._samples: list[Any] = []
        self.counter = observing.StepCounter(on_step=self._on_step, on_phase=self._mark)
        self._looked = 1 + min(self.warmup, LOOKED_AT)
        self._search = observing.RootSearch()
        self._stop_watching = lambda: None
        # All other functions of this kind call these.
        self._exec = {name: getattr(os, name) for name in ("execv", "execve")}
        self.progress.explain = self._explain
        # Of what a script forks, nothing is measured.
        os.register_at_fork(after_in_child=self.end)

    def begin(self) -> None:
        """Observe everything that runs in this process from now on."""
        self.counter.install()
        self._search.begin()
        hooks.listen(self._on_mark)
        for name in self._exec:
            setattr(os, name, _refuse_exec)

    def end(self) -> None:
        """Observe nothing any more."""
        self.counter.remove()
        self._search.end()
        self._stop_watching()
        hooks.listen(None)
        for name, plain in self._exec.items():
            setattr(os, name, plain)

    def _explain(self) -> str:
        """What a rank that hangs before its first training step has done so far."""
        seen = f"{self.counter.passes} backwards, {self.counter.seen} optimizer steps"
        return "" if self.ended else f"{SEEN} {seen}: {observing.MARK_STEPS}"

    def _mark(self, phase: str) -> None:
        """Note that a phase ends now, if phases are told apart."""
        window = self.window
        if window is not None and len(window.phases) > 1:
            window.clock.mark(phase)

    def _on_step(self) -> None:
        if self.is_marked:
            self._mark("update")
        elif self.ended == 0:
            self._try(self._open)
        else:
            self._end_step(None, None)

    def _on_mark(self, loss: Any, samples: Any) -> None:
        if not self.is_marked or self.ended == 0:
            self.is_marked = True
            self._try(self._open)
        else:
            # The script cannot change a copy, which does not wait for a device.
            copy = loss.detach().clone() if torch.is_tensor(loss) else loss
            self._end_step(copy, samples)

    def _open(self) -> None:
        if self.root is None:
            self.root = self._search.end()
            if self.root is not None:
                self._stop_watching = observing.watch(self.root, self._on_forward)
        self.opened = usage.process_age()
        self.device = self.find_device(self)
        is_bare = self.warmup == 0
        if self.probe is not None and not self.probe.is_on:
            self.probe.begin()
            if is_bare:
                return
        self.ended = 1
        # A mark may come again, which begins anew.
        self._losses, self._samples = [], []
        self.window = ScriptWindow(
            (self.device,),
            PHASES if self.root is not None else WHOLE,
            warmup=self.warmup,
            steps=self.steps,
            local_rank=self.local_rank,
            progress=self.progress,
        )
        if is_bare:
            self._end_look()
            self.window.end_warmup()
            self.window.begin()
        self.window.clock.begin(0)

    def _on_forward(self, inputs: Any) -> None:
        if self.inputs is None and isinstance(self.root, DistributedDataParallel):
            self.inputs = observing.digest_values(inputs)
        self._mark("load")
        if self.window is not None:
            self.window.count(observing.leading_sizes(inputs))

    def _end_look(self) -> None:
        if self.probe is not None and self.probe.is_on:
            self.probe.end()
            if (optimizer := self.counter.optimizer) is not None:
                weights = observing.trained_weights(optimizer)
                self.weights = observing.digest_values(weights)

    def _end_step(self, loss: Any, samples: Any) -> None:
        window = self.window
        assert window is not None
        if self.ended + 1 >= self._looked:
            self._end_look()
        window.clock.mark(window.phases[-1])
        self._losses.append(loss)
        self._samples.append(samples)
        self.ended += 1
        if self.ended == self.needed:
            window.close()
            self.end()
            self._try(self._finish)
            self.is_complete = True
            # First: what the script has put in the place of stdout may fail.
            threading.Thread(target=_end_process, daemon=True).start()
            print("rankbench ends the script: its steps are measured", flush=True)
            raise SystemExit(0)
        step = self.ended - 1
        if step == self.warmup:
            window.end_warmup()
            window.begin()
            step = 0
        else:
            step -= self.warmup if step > self.warmup else 0
            self.progress.step(step)
        window.clock.begin(step)

    def _finish(self) -> None:
        assert self.window is not None
        if None not in self._losses:
            losses = [torch.as_tensor(one).double().mean() for one in self._losses]
            self.window.loss = np.array([float(one) for one in losses], np.float32)
        samples = self._samples[self.warmup :]
        self.window.samples = 0 if None in samples else sum(map(int, samples))
        self.finish(self)

    def _try(self, function: Callable[[], None]) -> None:
        """Call a function of ours; the script may catch what it raises."""
        try:
            function()
        except Exception as error:
            self.failure = error
            self.end()
            raise


def _refuse_exec(file: Any, *_: Any) -> None:
    raise observing.ScriptError(
        f"the script replaces its process by {file} (os.exec), which cannot be "
        "measured: set by env, in the experiment, what it sets before"
    )


def _end_process() -> None:
    """End a process that goes on although its measurement is complete."""
    time.sleep(GRACE)
    print(f"rankbench ends this process, {GRACE:g} s after its measurement", flush=True)
    os._exit(0)
