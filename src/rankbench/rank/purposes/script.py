"""A measuring launch of a user's training script on one rank."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import runpy
import shutil
import socket
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import distributed, nn

from rankbench import environ
from rankbench.launch_spec import SET_UP, THE_END
from rankbench.own_files import JOINS, fill_arguments, values_of
from rankbench.rank.facts import usage
from rankbench.rank.models import count_parameters
from rankbench.rank.purposes.measure import describe_rank
from rankbench.rank.scripts.exchange import ExchangeProbe
from rankbench.rank.scripts.observing import (
    MARK_STEPS,
    ScriptError,
    count_trained,
    describe_optimizer,
)
from rankbench.rank.scripts.session import ScriptSession
from rankbench.rank.world.lifeline import Duty
from rankbench.rank.world.manual import rank_argv
from rankbench.rank.world.places import announce, find_free_port
from rankbench.record import OTHER_SAMPLES, write_json

# Stands in a script that marks its steps.
MARK = b"hooks.step"


def run(duty: Duty) -> None:
    """Run the script until it is measured, and write this rank's report.

    Raises:
        ScriptError: the script did not train enough steps, or not as the cell says.
        BaseException: whatever else the script raised before.
    """
    spec, cell, file = duty.spec, duty.spec.cell, duty.spec.own["strategy"]
    assert cell.script is not None, "a script"
    assert cell.own_strategy is not None, "a script is a file"
    assert cell.steps is not None, "a script has no epochs"
    begun = usage.process_age()
    duty.progress.enter(SET_UP)
    if cell.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    frozen = spec.own_folders["strategy"]
    # What the script has left in the first folder may not be removable.
    folder = spec.work / ("script-again" if environ.is_placed() else "script")
    name = file.relative_to(frozen).as_posix()
    copy_folder(frozen, folder, spec.data_dir)
    again = None
    if duty.place.size == 1 and not environ.is_placed() and may_run_alone(frozen):
        # As a user starts it on one device. Many scripts then train without DDP.
        again = environ.forget_place()
    else:
        os.environ |= place_variables(duty.place, duty.init_method)
    usage.reset_peaks(())
    session = ScriptSession(
        warmup=cell.warmup,
        steps=cell.steps,
        local_rank=duty.place.local_rank,
        progress=duty.progress,
        find_device=lambda session: find_device(duty, session),
        finish=lambda session: _report(duty, begun, session),
    )
    sources = frozen.rglob("*.py")
    session.counter.may_differ = any(MARK in path.read_bytes() for path in sources)
    session.begin()
    ended: BaseException | None = None
    try:
        values = values_of(cell, duty.place.rank, duty.place.local_rank)
        arguments = fill_arguments(cell.script["args"], values)
        run_file(folder, name, arguments, cell.own_strategy.get("module"))
    except BaseException as error:
        ended = error
    session.end()
    if not session.is_complete:
        if again is not None and not session.ended:
            _begin_again(duty, again, ended)
        raise session.failure or _fault(session, name, ended)
    if ended is not None and not isinstance(ended, SystemExit):
        traceback.print_exception(ended)
    duty.progress.enter(THE_END)


def _begin_again(
    duty: Duty, variables: dict[str, str], ended: BaseException | None
) -> None:
    """Replace this process by one that has its place, because the script needs it."""
    if ended is not None:
        traceback.print_exception(ended)
    print("rankbench starts the script again, with the variables of torchrun")
    sys.stdout.flush()
    os.chdir(duty.spec.directory)
    argv = rank_argv(duty.init_method, duty.spec.file)
    os.execve(argv[0], argv, variables)  # noqa: S606


def _fault(
    session: ScriptSession, name: str, ended: BaseException | None
) -> BaseException:
    """Why a script was not measured: what it raised, or that it ended too early."""
    if ended is not None and not isinstance(ended, SystemExit):
        return ended
    counter = session.counter
    seen = (
        f"the {counter.seen} steps of its optimizers came without forward and backward"
        if counter.seen
        else "this process saw no step of a torch optimizer"
    )
    others = resource.getrusage(resource.RUSAGE_CHILDREN)
    if (seconds := others.ru_utime + others.ru_stime) >= 1:
        seen += f", and programs that it started, which worked for {seconds:.0f} s, are"
        seen += " not measured"
    when, how = "before its first training step", f": {seen}; {MARK_STEPS}"
    if session.ended:
        when = f"after {session.ended} of {session.needed} training steps"
        how = (
            " (the first, the warm-up and the timed ones): let it train longer, or "
            "measure fewer steps"
        )
    if ended is not None and ended.code:
        is_number = isinstance(ended.code, int)
        how = f"{' and exited with status' if is_number else ':'} {ended.code}"
    return ScriptError(f"{name} ended {when}{how}")


# Modules by which ranks may join without torch.distributed.
_OTHER_RUNTIMES = ("horovod.torch", "mpi4py.MPI")


def find_device(duty: Duty, session: ScriptSession) -> torch.device:
    """The device of this rank, once its first step has ended.

    Raises:
        ScriptError: the script has not used a GPU, or its ranks do not train one model
            over the cell's backend.
    """
    cell, ranks = duty.spec.cell, duty.place.size
    device = torch.device("cpu")
    if cell.device == "cuda":
        if not torch.cuda.is_initialized():
            raise ScriptError(
                "the script uses no GPU, but this cell is on device: cuda"
            )
        device = torch.device("cuda", torch.cuda.current_device())
    if ranks == 1:
        return device
    if not distributed.is_initialized():
        # Without an optimizer of torch it may join its ranks by whatever it likes.
        is_own = session.is_marked and not session.counter.seen
        if is_own or any(name in sys.modules for name in _OTHER_RUNTIMES):
            return device
        raise ScriptError(
            f"the script trains {ranks} models, one on each rank: it does not join its "
            "ranks by torch.distributed, Horovod or MPI"
        )
    if (joined := distributed.get_world_size()) != ranks:
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
    if session.probe is None:
        file = duty.spec.work / f"exchange{duty.place.rank}.json"
        session.probe = ExchangeProbe(file)
    return device


def _report(duty: Duty, begun: float, session: ScriptSession) -> None:
    """Write this rank's report.

    Args:
        begun: age of the process when the launch began.
    """
    cell, shape, place = duty.spec.cell, duty.spec.shape, duty.place
    window, steps = session.window, cell.steps
    assert window is not None
    assert steps is not None
    if not window.samples:
        # Planned ones, which ranks share evenly.
        planned = shape.global_batch * steps * shape.replica_ranks
        window.samples = planned // place.size + (place.rank < planned % place.size)
    # A script does not say what an epoch is: the whole window counts as one.
    report = describe_rank(duty, window, steps, begun, session.opened)
    of_rank, details = report["rank"], report["rank"]["details"]
    trained = 0
    if (optimizer := session.counter.optimizer) is not None:
        # `optim` is what ZeroRedundancyOptimizer runs on this rank.
        state = getattr(optimizer, "optim", optimizer).state.values()
        of_rank["memory"]["optimizer_mib"] = usage.size_of_state(state)
        details["optimizer"] = describe_optimizer(optimizer)
        trained = count_trained(optimizer)
    if place.rank == 0:
        report["model"] = describe_root(session.root, shape.replica_ranks)
    if (passes := session.counter.passes / session.ended) != 1:
        details["backwards_per_step"] = passes
    if session.inputs is not None:
        details["inputs"] = session.inputs
    # A script may call its model several times with one batch.
    counted, samples = window.counted, window.samples
    if counted and not any(n and n % samples == 0 for n in counted):
        details["counted"] = {"inputs": counted[0], "planned": samples}
        report["marks"] = [OTHER_SAMPLES]
    if session.probe is not None and (seen := session.probe.read(trained)):
        details["exchange"] = {**seen, "weights": session.weights}
    write_json(duty.spec.work / f"rank{place.rank}.json", report, durable=False)


def place_variables(place: environ.Place, init_method: str) -> dict[str, str]:
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
    elif url.scheme == "file" or environ.has_agent_store():
        meeting = announce(place, init_method, find_free_port)
    else:
        return place.export()
    names = ("MASTER_ADDR", "MASTER_PORT", environ.AGENT_STORE)
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


# A script that looks whether a launcher has started it. Libraries such as transformers,
# accelerate and Lightning look for their users.
_ASKS = re.compile(
    r"""(?:environ\.get|getenv)\(\s*["'](?:LOCAL_)?(?:RANK|WORLD_SIZE)\b"""
    r"""|["'](?:LOCAL_)?(?:RANK|WORLD_SIZE)["']\s+(?:not\s+)?in\s+(?:os\.)?environ"""
)


def may_run_alone(folder: Path) -> bool:
    """Whether a script may run without a launcher as well, by what its files say."""
    sources = [path.read_text(errors="replace") for path in folder.rglob("*.py")]
    return any(map(_ASKS.search, sources)) or not any(map(JOINS.search, sources))


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
