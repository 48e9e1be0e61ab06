"""Measure cells in rounds, so that changes of the machine affect all cells alike.

A round is one launch of each cell that still needs one, in random order. For a cell
that is measured alone, these are simply its launches.
"""

from __future__ import annotations

import random
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean

from rankbench.launch.hosts.base import Hosts
from rankbench.launch.job.attempt import Attempt, LaunchSeries
from rankbench.launch.job.claim import claim_next, open_claims
from rankbench.launch.process.supervise import run_launch
from rankbench.launch.processes import Interrupted, Stop
from rankbench.record import (
    CURED_BY_RETRY,
    MAX_RETRIES,
    Record,
    Verdict,
    complete,
    describe_launch,
    explain_loss,
    minutes,
    repeated,
    round_of,
)
from rankbench.stopping import LaunchHistory, find_ended

# Attempt, number of the round from 0 -> the hosts of a launch.
Choose = Callable[[Attempt, int], Hosts]

# Id of a cell, or name of a job; a line of its progress.
Say = Callable[[str, str], None]


class Rounds:
    """The launches of one or more cells, until none needs another.

    Attributes:
        attempts: by the ids of their cells. One that is removed is not measured.
        enough: id of a cell that the budget ended -> how many launches it has.
        verdicts: by the ids of the cells that were judged.
    """

    def __init__(
        self,
        attempts: Sequence[Attempt],
        *,
        say: Say,
        budget: float | None = None,
        others: Mapping[str, LaunchHistory] | None = None,
    ) -> None:
        """Remember what is measured.

        Args:
            attempts: those whose records have been read.
            say: gets lines of progress.
            budget: device-seconds that all launches may take; None for no limit.
            others: launches of cells of other jobs, which the budget is of as well.
        """
        self.attempts = {attempt.id: attempt for attempt in attempts}
        self._say, self._budget, self._others = say, budget, others or {}
        # Of each launch of this process.
        self._seconds: list[float] = []
        # Id of a cell -> launches that were lost to a port or a host.
        self._retries = Counter[str]()
        self._in_turn = True
        self.enough: dict[str, int] = {}
        self.verdicts: dict[str, Verdict] = {}

    def find_unfinished(self) -> list[Attempt]:
        """Return the attempts that need a launch, be it a gate or a profile."""
        waiting = {attempt.id for attempt in self._find_waiting()}
        return [
            attempt
            for attempt in self.attempts.values()
            if attempt.id in waiting
            or open_claims(attempt.measured.directory)
            or (attempt.has_gate and not attempt.gate.is_complete())
            or (self._wants_profile(attempt) and not attempt.profile.is_complete())
        ]

    def run(
        self,
        choose: Choose,
        stop: Stop,
        *,
        devices: int | None = None,
        at_most: int | None = None,
    ) -> None:
        """Run the gates, then rounds, then profiles.

        Args:
            choose: gives the hosts of a launch.
            stop: whether this process was told to end.
            devices: those that the job holds, idle ones too; None if only the cell's.
            at_most: the number of rounds; None for as many as the cells need.

        Raises:
            Interrupted: a signal came; the next run goes on from here.
        """
        self._choose, self._stop, self._devices = choose, stop, devices
        for attempt in list(self.attempts.values()):
            if attempt.has_gate:
                self._launch_once(attempt.gate)
            if attempt.id in self.attempts:
                self._settle(attempt.measured)
        waiting = self._find_waiting()
        records = [r for attempt in waiting for r in attempt.measured.records]
        rounds = [place for record in records if (place := round_of(record))]
        # A run goes on with the last round that began before an interruption. Several
        # seeds only meet if cells were measured at different times. The one that most
        # launches have gives the most pairs.
        seeds = [known for known, _ in rounds] or [secrets.randbits(32)]
        seed = max(dict.fromkeys(seeds), key=seeds.count)
        number = max((n for known, n in rounds if known == seed), default=0)
        self._in_turn = len(self.attempts) > 1 or number > 0
        done = 0
        while waiting and done != at_most:
            # An interrupted round is completed first.
            done += self._run_round(waiting, seed, max(1, number))
            number = max(1, number) + 1
            waiting = self._find_waiting()
        for attempt in list(self.attempts.values()):
            if self._wants_profile(attempt):
                self._launch_once(attempt.profile)

    def _wants_profile(self, attempt: Attempt) -> bool:
        return attempt.request.profile and self.verdicts[attempt.id].ok > 0

    def _find_waiting(self) -> list[Attempt]:
        """Judge all cells, and return those that need another launch."""
        attempts = self.attempts.values()
        ours = {attempt.id: attempt.launched() for attempt in attempts}
        self.enough = find_ended({**self._others, **ours}, self._budget)
        return [attempt for attempt in attempts if not self._judge(attempt).complete]

    def _judge(self, attempt: Attempt) -> Verdict:
        verdict = attempt.verdict(self.enough.get(attempt.id))
        self.verdicts[attempt.id] = verdict
        return verdict

    def _run_round(self, waiting: Sequence[Attempt], seed: int, number: int) -> bool:
        """Launch each cell that has none in this round yet; whether there was any.

        Disturbed launches are repeated after the others of the round.
        """
        places = draw(list(self.attempts), seed, number)
        left = [one.id for one in waiting if not _took_part(one, seed, number)]
        queue = sorted(left, key=places.index)
        while queue:
            name = queue.pop(0)
            attempt = self.attempts[name]
            position = places.index(name) + 1
            turn = {"seed": seed, "number": number, "position": position}
            if self._devices is not None:
                # Those that the job holds meanwhile, idle ones too.
                turn["devices"] = self._devices
            self._settle(attempt.measured)
            if not self.verdicts[name].complete:
                self._launch(
                    attempt.measured, number - 1, turn if self._in_turn else None
                )
                is_left = name in self.attempts and self._in_turn
                if is_left and not _took_part(attempt, seed, number):
                    queue.append(name)
        return bool(left)

    def _launch_once(self, series: LaunchSeries) -> None:
        """Launch a gate or a profile until there is one that counts."""
        self._settle(series)
        while not series.is_complete() and series.attempt.id in self.attempts:
            self._launch(series, 0)

    def _settle(self, series: LaunchSeries) -> None:
        attempt = series.attempt
        hosts = self._choose(attempt, 0)
        series.settle(hosts, self._stop, partial(self._say, attempt.id))
        self._judge(attempt)

    def _launch(
        self, series: LaunchSeries, number: int, turn: Mapping[str, int] | None = None
    ) -> None:
        attempt = series.attempt
        hosts = self._choose(attempt, number)
        serial, begun = len(self._seconds) + 1, time.monotonic()
        try:
            self._stop.heed()
            launch, folder = claim_next(series.directory)
            spec = attempt.spec(series, launch, folder, hosts, serial=serial, turn=turn)
            record = complete(run_launch(spec, hosts, self._stop))
            series.read()
        except (Interrupted, ValueError, OSError) as error:
            # The message at the end of the job shall name the cell.
            error.add_note(attempt.id)
            raise
        self._seconds.append(time.monotonic() - begun)
        self._judge(attempt)
        self._say(attempt.id, self._describe(record))
        if (cause := record["cause"]) == CURED_BY_RETRY:
            self._retries[attempt.id] += 1
            if self._retries[attempt.id] > MAX_RETRIES:
                # Other cells may have other images, ports and hosts.
                self._say(attempt.id, f"{attempt.id}  is left to the next run")
                del self.attempts[attempt.id], self.verdicts[attempt.id]
        elif cause is not None:
            ended = Interrupted(explain_loss(record))
            ended.add_note(attempt.id)
            raise ended

    def _describe(self, record: Record) -> str:
        """A line about the launch that has just ended, and the time that is left."""
        name = record["cell_id"]
        verdict = self.verdicts[name]
        again = repeated(self.attempts[name].measured.records)
        is_repeated = record["launch"] in [one["launch"] for one in again]
        said = describe_launch(record, is_repeated=is_repeated)
        parts = [name, f"{verdict.ok}/{verdict.wanted}", said]
        unfinished = [v for v in self.verdicts.values() if not v.complete]
        if left := sum(verdict.wanted - verdict.ok for verdict in unfinished):
            seconds = left * fmean(self._seconds)
            word = "launch" if left == 1 else "launches"
            parts.append(f"{left} {word} left, about {minutes(seconds)}")
        return "  ".join(parts)


def _took_part(attempt: Attempt, seed: int, number: int) -> bool:
    """Whether it has a launch in this round that no other one shall replace."""
    records = attempt.measured.records
    again = set(map(id, repeated(records)))
    return any(
        round_of(record) == (seed, number) and id(record) not in again
        for record in records
    )


def draw(names: Sequence[str], seed: int, number: int) -> list[str]:
    """Return the order of the cells in a round; the same for the same arguments."""
    chance = random.Random(f"{seed}.{number}")
    return chance.sample(sorted(names), len(names))
