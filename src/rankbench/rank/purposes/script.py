"""A measuring launch of a user's training script on one rank."""

from __future__ import annotations

import os
import sys
import traceback

import torch
from torch import distributed

from rankbench.environ import forget_place, is_placed
from rankbench.launch_spec import SET_UP, THE_END
from rankbench.own_files import fill_arguments, values_of
from rankbench.rank.facts import usage
from rankbench.rank.purposes.measure import describe_rank
from rankbench.rank.scripts.exchange import ExchangeProbe
from rankbench.rank.scripts.observing import count_trained, describe_optimizer
from rankbench.rank.scripts.running import (
    MARK_STEPS,
    ScriptError,
    check_ranks,
    copy_folder,
    describe_root,
    find_device,
    may_run_alone,
    place_variables,
    run_file,
)
from rankbench.rank.scripts.session import ScriptSession
from rankbench.rank.world.lifeline import Duty
from rankbench.rank.world.manual import rank_argv
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
    folder = spec.work / ("script-again" if is_placed() else "script")
    name = file.relative_to(frozen).as_posix()
    copy_folder(frozen, folder, spec.data_dir)
    again = None
    if duty.place.size == 1 and not is_placed() and may_run_alone(frozen):
        # As a user starts it on one device. Many scripts then train without DDP.
        again = forget_place()
    else:
        os.environ |= place_variables(duty.place, duty.init_method)
    usage.reset_peaks(())
    session = ScriptSession(
        warmup=cell.warmup,
        steps=cell.steps,
        local_rank=duty.place.local_rank,
        progress=duty.progress,
        find_device=lambda session: _find_device(duty, session),
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
    progress = "ended before its first training step"
    if session.ended:
        progress = f"ended after {session.ended} of {session.needed} training steps"
    if session.is_complete:
        if ended is not None and not isinstance(ended, SystemExit):
            traceback.print_exception(ended)
    elif again is not None and not session.ended:
        _begin_again(duty, again, ended)
    elif session.failure is not None:
        raise session.failure
    elif ended is None:
        raise ScriptError(_describe(session, name, progress))
    elif isinstance(ended, SystemExit):
        status = 0 if ended.code is None else ended.code
        how = " and exited with status " if isinstance(status, int) else ": "
        raise ScriptError(f"{name} {progress}{how}{status}")
    else:
        raise ended
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


def _describe(session: ScriptSession, name: str, progress: str) -> str:
    """Why a script that ended by itself was not measured."""
    counter = session.counter
    if session.ended:
        return (
            f"{name} {progress} (the first, the warm-up and the timed ones): "
            "let it train longer, or measure fewer steps"
        )
    seen = (
        f"the {counter.seen} steps of its optimizers came without forward and backward"
        if counter.seen
        else "this process saw no step of a torch optimizer"
    )
    return f"{name} ended without a training step: {seen}; {MARK_STEPS}"


def _find_device(duty: Duty, session: ScriptSession) -> torch.device:
    """The device of this rank, once its first step has ended.

    Raises:
        ScriptError: the script does not train as the cell says.
    """
    device = find_device(duty.spec.cell.device)
    if duty.place.size > 1:
        # Without an optimizer of torch it may join its ranks by whatever it likes.
        is_own = session.is_marked and not session.counter.seen
        check_ranks(duty.spec.cell, duty.place.size, is_own=is_own)
        if session.probe is None and distributed.is_initialized():
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
