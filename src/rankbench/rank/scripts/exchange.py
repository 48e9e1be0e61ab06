"""Looks what ranks send to each other in one step, outside of the timed window.

Many scripts join their ranks, and then train one model on each: without CUDA they leave
DistributedDataParallel out, call the module within it, or average their loss alone.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.profiler import ExecutionTraceObserver

# Share of the trained weights. Less is a loss, or statistics of batch normalisation.
_LEAST_SHARE = 0.005

# Operations between two ranks carry activations, as in a pipeline.
_OF_PIPELINES = ("send", "recv", "alltoall")
_WITHOUT_VALUES = ("barrier", "monitored_barrier")

_LAST_CALLS = 0.05  # seconds, outside of the timed window


class ExchangeProbe:
    """Records the collective operations of this process, of all its threads.

    The observer of torch sees every call of an operator, also those that DDP makes in
    C++. It does not exclude a profiler of the script.
    """

    def __init__(self, file: Path) -> None:
        """Take a file for the trace, which is removed when it is read."""
        self._file = file
        self._observer: ExecutionTraceObserver | None = None

    @property
    def is_on(self) -> bool:
        return self._observer is not None

    def begin(self) -> None:
        self.end()
        self._observer = ExecutionTraceObserver()
        self._observer.register_callback(str(self._file))
        self._observer.start()

    def end(self) -> None:
        if self._observer is not None:
            self._observer.stop()
            # It is freed next, and a thread of the backend may still be within it.
            time.sleep(_LAST_CALLS)
            self._observer.unregister_callback()
            self._observer = None

    def read(self, trained: int) -> dict[str, Any] | None:
        """Operations of the step, and whether they carry what is trained.

        Args:
            trained: number of weights that this rank trains; 0 if it is not known.

        Returns:
            None if no step was observed.
        """
        if not self._file.exists():
            return None
        nodes = json.loads(self._file.read_bytes())["nodes"]
        self._file.unlink()
        calls: dict[str, int] = {}
        values = 0
        for node in nodes:
            space, _, name = node["name"].partition("::")
            if space == "c10d" and name not in _WITHOUT_VALUES:
                calls[name.strip("_")] = calls.get(name.strip("_"), 0) + 1
                values += max(_sizes(node["inputs"]["shapes"]), default=0)
        trains = any(name.startswith(_OF_PIPELINES) for name in calls) or (
            values > 0 and values >= _LEAST_SHARE * trained
        )
        return {"calls": calls, "values": values, "trains": trains}


def _sizes(shapes: Any) -> Iterator[int]:
    """Values of each argument of an operator: a tensor, or a list of them.

    The trace has ``[]`` for a scalar tensor, and for what is no tensor.
    """
    for shape in shapes:
        if shape and isinstance(shape[0], list):
            yield sum(_sizes(shape))
        else:
            yield math.prod(shape)
