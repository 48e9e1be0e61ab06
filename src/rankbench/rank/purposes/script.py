"""A measuring launch of a user's training script on one rank."""

from __future__ import annotations

import os
import traceback

import torch

from rankbench.launch_spec import SET_UP, THE_END
from rankbench.rank.facts import usage
from rankbench.rank.purposes import Duty
from rankbench.rank.purposes.report import write_report
from rankbench.rank.scripts.running import (
    ScriptError,
    check_ranks,
    copy_folder,
    describe_root,
    explain_exit,
    find_device,
    place_variables,
    read_details,
    run_file,
)
from rankbench.rank.scripts.session import Session
from rankbench.rank.strategies.base import World
from rankbench.templates import fill_arguments, values_of


def run(duty: Duty) -> None:
    """Run the script until it is measured, and write this rank's report.

    Raises:
        ScriptError: the script did not train enough steps, or not as the cell says.
        BaseException: whatever else the script raised before.
    """
    cell, file = duty.spec.cell, duty.spec.own["strategy"]
    assert cell.script is not None, "a script"
    launch = _ScriptLaunch(duty)
    duty.progress.enter(SET_UP)
    os.environ |= place_variables(duty.place, duty.init_method)
    if cell.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    folder = duty.spec.work / "script"
    copy_folder(file.parent, folder)
    name = file.name
    log = duty.spec.log(duty.place.rank)
    since = log.stat().st_size
    usage.reset_peaks(())
    session = launch.session
    session.begin()
    try:
        run_file(folder, name, fill_arguments(cell.script["args"], values_of(cell)))
    except BaseException as error:
        session.end()
        if session.is_complete:
            if not isinstance(error, SystemExit):
                traceback.print_exception(error)
        elif session.failure is not None:
            raise session.failure from None
        elif isinstance(error, SystemExit) and error.code in (None, 0):
            raise ScriptError(_describe(session, name)) from None
        elif isinstance(error, SystemExit):
            progress = _how_far(session)
            raise ScriptError(
                explain_exit(name, error.code, progress, log, since)
            ) from None
        else:
            raise
    else:
        session.end()
        if session.failure is not None:
            raise session.failure
        if not session.is_complete:
            raise ScriptError(_describe(session, name))
    duty.progress.enter(THE_END)


def _how_far(session: Session) -> str:
    window = session.window
    if not window.ended:
        return "ended before its first training step"
    return f"ended after {window.ended} of {window.needed} training steps"


def _describe(session: Session, name: str) -> str:
    """Why a script that ended by itself was not measured."""
    window, counter = session.window, session.counter
    if window.ended:
        return (
            f"{name} {_how_far(session)} (the first, the warm-up and the timed ones): "
            "let it train longer, or measure fewer steps"
        )
    seen = (
        f"the {counter.seen} steps of its optimizers came without forward and backward"
        if counter.seen
        else "this process saw no step of a torch optimizer"
    )
    return (
        f"{name} ended without a training step: {seen}; call rankbench.hooks.step() at "
        "the end of each step, in the process that the launcher starts"
    )


class _ScriptLaunch:
    """What a rank knows of its script besides the steps."""

    def __init__(self, duty: Duty) -> None:
        assert duty.spec.cell.steps is not None, "a script has no epochs"
        self._duty = duty
        self._begun = usage.process_age()
        self._device = torch.device("cpu")
        self._opened = self._begun
        self.session = Session(
            warmup=duty.spec.cell.warmup,
            steps=duty.spec.cell.steps,
            local_rank=duty.place.local_rank,
            progress=duty.progress,
            find_device=self._find_device,
            finish=self._report,
        )

    def _find_device(self, session: Session) -> torch.device:
        """The device of this rank, once its first step has ended.

        Raises:
            ScriptError: the script does not train as the cell says.
        """
        self._opened = usage.process_age()
        cell = self._duty.spec.cell
        self._device = find_device(cell.device)
        if self._duty.place.size > 1:
            check_ranks(cell, self._duty.place.size, is_marked=session.is_marked)
        return self._device

    def _report(self, session: Session) -> None:
        duty, cell, place = self._duty, self._duty.spec.cell, self._duty.place
        steps = cell.steps
        assert steps is not None
        measured = session.window.measured(self._share(steps))
        state = None
        if (leader := session.counter.leader) is not None:
            # `optim` is what ZeroRedundancyOptimizer runs on this rank.
            state = getattr(leader, "optim", leader).state.values()
        write_report(
            duty,
            World(
                rank=place.rank,
                size=place.size,
                local_rank=place.local_rank,
                device=self._device,
                devices=(self._device,),
                backend=cell.backend,
                rank_batch=duty.spec.shape.rank_batch,
            ),
            measured,
            seconds={
                "startup": self._begun,
                "setup": self._opened - self._begun,
                "warmup": measured.warmup_s,
                "train": measured.window_s,
            },
            memory=usage.read_peaks([self._device], state),
            phases=list(session.window.phases),
            # A script does not say what an epoch is: the whole window counts as one.
            steps_per_epoch=steps,
            samples_seen=measured.samples
            + self._share(steps + cell.warmup)
            - self._share(steps),
            details=read_details(session.root),
            model=(
                describe_root(session.root, duty.spec.shape.replica_ranks)
                if place.rank == 0
                else None
            ),
        )

    def _share(self, steps: int) -> int:
        """Planned samples of this rank in so many steps; ranks share them evenly."""
        shape, place = self._duty.spec.shape, self._duty.place
        everything = shape.global_batch * steps * shape.replica_ranks
        return everything // place.size + (place.rank < everything % place.size)
