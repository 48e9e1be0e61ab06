"""Runs the file of a script as Python would; checks it, and says why it ended."""

from __future__ import annotations

import contextlib
import os
import re
import runpy
import shutil
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import distributed, nn

from rankbench.cell import Cell
from rankbench.environ import AGENT_STORE, Place, has_agent_store
from rankbench.rank.models import count_parameters
from rankbench.rank.world.places import announce, find_free_port

# What a script does whose steps cannot be seen.
MARK_STEPS = (
    "call rankbench.hooks.step() at the end of each step, in the process that the "
    "launcher starts"
)


class ScriptError(RuntimeError):
    """A script did not do what its measurement needs."""


def place_variables(place: Place, init_method: str) -> dict[str, str]:
    """The variables that scripts read, whichever launcher started them.

    They are those of torchrun. With ``env://`` the launcher has set the place to meet.
    A store that it keeps there is not used, because a script may name a place of its
    own: rank 0 then opens a store, as it does without a launcher.

    Args:
        place: of this rank.
        init_method: URL at which the ranks meet.
    """
    url = urlsplit(init_method)
    if url.scheme == "tcp":
        meeting = (str(url.hostname), str(url.port))
    elif url.scheme == "file" or has_agent_store():
        meeting = announce(place, init_method, find_free_port)
    else:
        return place.export()
    names = ("MASTER_ADDR", "MASTER_PORT", AGENT_STORE)
    return place.export() | dict(zip(names, (*meeting, "False"), strict=True))


def copy_folder(frozen: Path, folder: Path, data: Path) -> None:
    """Copy the files of a script, which other ranks of the host do at the same time.

    Scripts write into their folder, so each launch has a copy of its own. What they
    download into `data` or `../data` stays for other launches.

    Args:
        frozen: the files.
        folder: the copy.
        data: the folder that stays.
    """
    if folder.exists():
        return
    beside = folder.with_name(f".{folder.name}.{socket.gethostname()}.{os.getpid()}")
    beside.mkdir()
    # The files of the copy are writable, even if the frozen ones are not.
    for path in sorted(frozen.rglob("*")):
        target = beside / path.relative_to(frozen)
        target.mkdir() if path.is_dir() else shutil.copyfile(path, target)
    for place in (beside, folder.parent):
        # It has a folder of that name, or data cannot be written here.
        with contextlib.suppress(OSError):
            data.mkdir(parents=True, exist_ok=True)
            (place / "data").symlink_to(data)
    try:
        beside.rename(folder)
    except OSError:
        shutil.rmtree(beside)
        if not folder.exists():
            raise


def run_file(
    folder: Path, name: str, arguments: Sequence[str], module: str | None = None
) -> None:
    """Run a script as Python does, but in this process.

    Args:
        folder: of all of its files; modules are found in it as well.
        name: file of the script, in the folder of which it runs.
        arguments: of the script.
        module: its module, in place of the file: ``python -m MODULE`` runs it in the
            folder that modules begin in.

    Raises:
        BaseException: whatever the script raises.
    """
    # Programs in Python that a script starts find its modules, as without rankbench.
    os.environ.pop("PYTHONSAFEPATH", None)
    file = folder / name
    start = file.parent
    if module is not None:
        depth = len(module.split(".")) - (file.name != "__main__.py")
        start = file.parents[depth]
    os.chdir(start)
    sys.path.insert(0, str(start))
    sys.path += [str(place) for place in start.parents if place.is_relative_to(folder)]
    sys.argv = [str(file), *arguments]
    if module is None:
        runpy.run_path(str(file), run_name="__main__")
    else:
        runpy.run_module(module, run_name="__main__", alter_sys=True)


# A script that looks whether a launcher has started it, or one that joins its ranks by
# itself. Libraries such as transformers, accelerate and Lightning look for their users.
_ASKS = re.compile(
    r"""(?:environ\.get|getenv)\(\s*["'](?:LOCAL_)?(?:RANK|WORLD_SIZE)\b"""
    r"""|["'](?:LOCAL_)?(?:RANK|WORLD_SIZE)["']\s+(?:not\s+)?in\s+(?:os\.)?environ"""
)


_JOINS = re.compile(
    r"\b(?:init_process_group|init_distributed|init_device_mesh|hvd\.init)\("
    r"""|["'](?:LOCAL_)?(?:RANK|WORLD_SIZE)["']"""
)


def may_run_alone(folder: Path) -> bool:
    """Whether a script may run without a launcher as well, by what its files say."""
    sources = [path.read_text(errors="replace") for path in folder.rglob("*.py")]
    return any(map(_ASKS.search, sources)) or not any(map(_JOINS.search, sources))


# Modules by which ranks may join without torch.distributed.
_OTHER_RUNTIMES = ("horovod.torch", "mpi4py.MPI")


def find_device(kind: str) -> torch.device:
    """The device on which the script trains on this rank.

    Args:
        kind: ``cpu`` or ``cuda``, as the cell says.

    Raises:
        ScriptError: the script has not used a GPU.
    """
    if kind == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_initialized():
        raise ScriptError("the script uses no GPU, but this cell is on device: cuda")
    return torch.device("cuda", torch.cuda.current_device())


def check_ranks(cell: Cell, ranks: int, *, is_own: bool) -> None:
    """Check that the ranks of a script train one model over the cell's backend.

    Args:
        cell: what is measured.
        ranks: number of ranks of the launch, more than one.
        is_own: whether it trains without torch's optimizers, and marks its steps.

    Raises:
        ScriptError: they do not.
    """
    if distributed.is_initialized():
        joined = distributed.get_world_size()
        if joined != ranks:
            raise ScriptError(f"the script joins {joined} of {ranks} ranks")
        config = distributed.distributed_c10d.get_backend_config()
        # cpu:gloo,cuda:nccl
        backends = dict(word.split(":") for word in config.split(",") if ":" in word)
        used, planned = backends.get(cell.device), cell.backend
        if planned in ("gloo", "mpi", "nccl") and used not in (None, planned):
            raise ScriptError(
                f"the script joins its ranks over {used}, but this cell measures "
                f"{planned}: give it {{backend}} in `args`, or change `backend`"
            )
    elif not is_own and not any(name in sys.modules for name in _OTHER_RUNTIMES):
        raise ScriptError(
            f"the script trains {ranks} models, one on each rank: it does not join its "
            "ranks by torch.distributed, Horovod or MPI"
        )


# Keeps a part of all parameters as one. Parameters with `ds_numel` are parts, too: of
# ZeRO-3 in DeepSpeed.
_FSDP = "FullyShardedDataParallel"


def describe_root(root: nn.Module | None, replica_ranks: int) -> dict[str, Any] | None:
    """Size of the model; None unless a rank knows all of its parameters."""
    if root is None or replica_ranks > 1:
        return None
    is_flat = any(type(module).__name__ == _FSDP for module in root.modules())
    if is_flat or any(hasattr(weight, "ds_numel") for weight in root.parameters()):
        return None
    return count_parameters(root)
