"""The launches of a series, one at a time: claims, progress, interruptions."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from rankbench.launch.hosts.base import Hosts
from rankbench.launch.hosts.this_machine import ThisMachine
from rankbench.launch.job.attempt import Series
from rankbench.launch.job.claim import claim_next, open_claims, read_owner
from rankbench.launch.job.pace import Out
from rankbench.launch.process.processes import Stop
from rankbench.launch.process.supervise import (
    close_dead_claim,
    refuse_launch,
    run_launch,
)
from rankbench.launch_spec import MEASURE, LaunchSpec
from rankbench.record import Record


class Interrupted(Exception):
    """This process was told to end. The next run measures missing launches."""


def launch_next(
    series: Series,
    hosts: Hosts,
    stop: Stop,
    *,
    serial: int,
    turn: Mapping[str, Any] | None = None,
) -> Record:
    """Run the next launch of a series.

    Args:
        series: the series.
        hosts: where its ranks run.
        stop: whether this process was told to end.
        serial: number of the launch in this process.
        turn: its place in a round, if cells take turns.

    Returns:
        Its record.

    Raises:
        Interrupted: a signal came.
    """
    heed(stop)
    number, directory = claim_next(series.directory)
    spec = series.attempt.spec(
        series, number, directory, hosts, serial=serial, turn=turn
    )
    record = _launch(series, spec, hosts, stop)
    series.read_new()
    return record


def _launch(series: Series, spec: LaunchSpec, hosts: Hosts, stop: Stop) -> Record:
    started = datetime.now(UTC)
    try:
        series.attempt.check_image()
    except (ValueError, OSError) as error:
        # Only this host may have the fault: other hosts of the site may have the image.
        return refuse_launch(spec, str(error), started)
    return run_launch(spec, hosts, stop)


def refuse_image(series: Series) -> str | None:
    """Leave a record of a launch that its image prevents on this host.

    Returns:
        Its reason; None, without a record, if the image is good.
    """
    started = datetime.now(UTC)
    try:
        series.attempt.check_image()
    except (ValueError, OSError) as error:
        number, directory = claim_next(series.directory)
        # Nothing starts, so it does not matter on which hosts.
        spec = series.attempt.spec(series, number, directory, ThisMachine())
        refuse_launch(spec, str(error), started)
        return str(error)
    return None


def settle_claims(series: Series, hosts: Hosts, stop: Stop, out: Out) -> None:
    """Wait for launches of other processes, and close those whose owner is dead."""
    told = False
    while claims := open_claims(series.directory):
        for number, directory in claims:
            if read_owner(directory).is_alive(directory):
                continue
            claimed = (directory / "claim.json").stat().st_mtime
            started = datetime.fromtimestamp(claimed, UTC)
            spec = series.attempt.spec(series, number, directory, hosts)
            close_dead_claim(spec, started=started)
            out.say(f"  {_name(series, number)} was left unfinished: it is repeated")
        if open_claims(series.directory):
            if not told:
                out.say("  waiting for a launch that another process measures")
                told = True
            heed(stop)
            time.sleep(1)
    series.read_new()


def _name(series: Series, number: int) -> str:
    return f"launch {number}" if series.purpose == MEASURE else series.purpose


def heed(stop: Stop) -> None:
    """Raise `Interrupted` if this process was told to end."""
    if reason := stop.reason():
        raise Interrupted(reason)
