"""What may explain that files of the user's own failed, found in their source."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from rankbench.launch_spec import LaunchSpec

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


def find_hints(
    spec: LaunchSpec,
    reason: str,
    passed: Mapping[str, str],
    inherited: Mapping[str, str] = os.environ,
) -> list[str]:
    """Sentences that end the reason of a launch with files of the user's own.

    Args:
        spec: the launch.
        reason: why it failed.
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
        if spawning and any(_JOINS in text for text in sources.values()):
            found.append(
                f"{spawning[0]} starts its own ranks, but the launcher starts them: "
                "remove that part"
            )
        if "FileNotFoundError" in reason:
            found.append("a file that the script reads must be listed under `files`")
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
