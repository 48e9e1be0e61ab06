"""An attempt of a cell: what its launches share, and what each of them is told."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rankbench.environ import job_id, read_setup_fault
from rankbench.launch.hosts.base import Hosts, ThisMachine
from rankbench.launch.job.claim import Request, claim_next, open_claims, read_owner
from rankbench.launch.job.provenance import describe_code, rank_code_hash
from rankbench.launch.process.classify import Outcome, has_gate
from rankbench.launch.process.command import check_binds
from rankbench.launch.process.evidence import describe_stands
from rankbench.launch.process.reports import read_end
from rankbench.launch.process.scratch import scratch_of
from rankbench.launch.process.supervise import close_launch
from rankbench.launch.processes import Stop
from rankbench.launch_spec import MEASURE, LaunchOptions, LaunchSpec
from rankbench.plan import Plan, PlannedCell
from rankbench.record import (
    GATE,
    MAX_REPEATS,
    PROFILE,
    Layout,
    Record,
    Verdict,
    explain_damage,
    judge,
    judge_attempt,
    numbered,
    read_record,
    why_stale,
)
from rankbench.stopping import LaunchHistory, brief


class Attempt:
    """The wanted attempt of a cell, with everything that its launches share.

    Attributes:
        id: of the cell.
        cell, shape: the cell, and its processes.
        image: name, file, recipe and sha256 of its image; None if it runs natively.
        code: description of the code that measures.
        data_dir: folder of the prepared data sets.
        measured, gate, profile: its launches, by purpose.
        stale: why they do not fit the plan any more; None if they do.
    """

    def __init__(
        self,
        layout: Layout,
        plan: Plan,
        planned: PlannedCell,
        request: Request,
        project: Path,
    ) -> None:
        self.id, self.cell, self.shape = planned.id, planned.cell, planned.shape
        self._plan, self.planned, self.request = plan, planned, request
        self._root = layout.root
        self.directory = layout.attempt(self.id, request.attempt)
        self.stale: str | None = None
        self.image: dict[str, Any] | None = None
        if planned.image is not None:
            # Jobs without images need none of these.
            from rankbench.launch.images.verify import read_image

            self.image = {**plan.images[planned.image], "sha256": None}
            # Only this host has the fault, and `refuse_host` will name it.
            with suppress(ValueError):
                self.image = read_image(self.image)
        is_repeated = plan.experiment["repeat_disturbed"]
        self._repeats = MAX_REPEATS if is_repeated else 0
        self.has_gate = plan.experiment["gate"] and has_gate(self.cell)
        self.code = {**describe_code(), "cell": rank_code_hash(self.cell)}
        # The frozen copy of each of the user's own files.
        self.own: dict[str, Path] = {}
        self.own_folders: set[Path] = set()
        for kind, own in self.cell.own_digests.items():
            folder = layout.own(own["digest"]).resolve()
            self.own_folders.add(folder)
            self.own[kind] = folder / own["file"]
        signers = plan.site["image_signers"]
        self._signers = [(project / file).resolve() for file in signers]
        self.data_dir = (project / plan.site["data_dir"]).resolve()
        self.measured = LaunchSeries(self, MEASURE, self.directory)
        self.gate = LaunchSeries(self, GATE, self.directory / GATE)
        self.profile = LaunchSeries(self, PROFILE, self.directory / PROFILE)

    def refuse_host(self) -> str | None:
        """Leave a record of a launch that this host prevents.

        What the site sets up before must have worked. An image must be unchanged and
        signed, and start here with its binds.

        Returns:
            Its reason; None, without a record, if all is well.
        """
        fault = read_setup_fault()
        if self.image is None and fault is None:
            return None
        from rankbench.launch.images.apptainer import check_runs
        from rankbench.launch.images.verify import check_file, check_signed, read_image

        started = datetime.now(UTC)
        try:
            if fault or self.image is None:
                raise ValueError(f"setup in site.yaml failed: {fault}")
            check_binds(self._plan.site["binds"])
            check_file(read_image(self.image))
            check_signed(self.image, self._signers)
            check_runs(Path(self.image["file"]))
        except (ValueError, OSError) as error:
            number, directory = claim_next(self.directory)
            # Nothing starts, so it does not matter on which hosts. Only this one may
            # have the fault: other hosts of the site may have the image.
            spec = self.spec(self.measured, number, directory, ThisMachine())
            close_launch(spec, Outcome("cancelled", str(error), "site"), started)
            return str(error)
        return None

    def launched(self) -> LaunchHistory:
        """Its launches, as far as the budget depends on them."""
        return LaunchHistory(
            self.request.launches,
            self.cell.size.devices,
            self.measured.records,
            self.gate.records,
        )

    def read(self) -> None:
        """Read the records that there are, and find whether they fit the plan."""
        try:
            for series in (self.gate, self.profile, self.measured):
                series.read()
            self.stale = why_stale(
                self.measured.records,
                cell_hash=self.planned.hash,
                image=self.image,
                asked_hash=self.request.cell_hash,
            )
        except ValueError as error:
            self.stale = explain_damage(error, self._root)

    def verdict(self, enough: int | None) -> Verdict:
        """Judge the launches.

        Args:
            enough: how many launches suffice, if the budget ended them.
        """
        wanted = self.request.launches if enough is None else enough
        gate, records = self.gate.records, self.measured.records
        return judge_attempt(gate, records, wanted, self.stale)

    def spec(
        self,
        series: LaunchSeries,
        number: int,
        directory: Path,
        hosts: Hosts,
        *,
        serial: int = 0,
        turn: Mapping[str, Any] | None = None,
    ) -> LaunchSpec:
        """What a launch is.

        Args:
            series: the launches to which it belongs.
            number: of the launch.
            directory: of the launch.
            hosts: where its ranks run.
            serial: differs between launches that follow each other on the same hosts.
            turn: its place in a round; None if the cell is measured alone.
        """
        plan, planned = self._plan, self.planned
        site = plan.site
        # One per core of its device, or its share of the host.
        share = max(1, site["cores"] // self.shape.ranks_per_node)
        threads = self.shape.cores_per_rank or share
        gates = [gate for record in self.gate.records if (gate := record.get("gate"))]
        scratch = None
        if hosts.names:  # Hosts that are not known yet have no scratch folder.
            scratch = scratch_of(site["scratch"], job_id())
        return LaunchSpec(
            directory=directory.resolve(),
            cell=self.cell.at_rate(self.shape.global_batch),
            shape=self.shape,
            data_dir=self.data_dir,
            threads=int(threads),
            heartbeat_grace=site["heartbeat_grace"],
            options=LaunchOptions.choose(plan.experiment),
            # An image has an interpreter of its own, found through its PATH.
            python=sys.executable if self.image is None else "python3",
            hosts=hosts.names,
            port=hosts.port(serial),
            interface=site["interface"],
            scratch=scratch,
            env=site["env"],
            binds=tuple(map(Path, site["binds"])),
            image=self.image,
            own=self.own,
            purpose=series.purpose,
            marks=list(planned.marks),
            about={
                "experiment": plan.name,
                "cell_id": self.id,
                "cell_hash": planned.hash,
                "attempt": self.request.attempt,
                "launch": number,
                "wanted": self.request.launches if series.purpose == MEASURE else 1,
                # How often a launch of its round is repeated if it was disturbed.
                "repeats": self._repeats if series.purpose == MEASURE else 0,
                "code": self.code,
                "gate": gates[-1] if gates else None,
                **({} if turn is None else {"round": turn}),
            },
        )


class LaunchSeries:
    """The launches of an attempt that serve one purpose, one at a time.

    Attributes:
        records: of the launches that have ended; `brief` ones if they are measured.
    """

    def __init__(self, attempt: Attempt, purpose: str, directory: Path) -> None:
        self.attempt, self.purpose, self.directory = attempt, purpose, directory
        self._records: dict[int, Record] = {}

    @property
    def records(self) -> list[Record]:
        return [self._records[number] for number in sorted(self._records)]

    def read(self) -> list[Record]:
        """Read the records of launches that have ended since; keep what verdicts need.

        Raises:
            ValueError: a record is damaged or of another schema version.
        """
        new = []
        for number in numbered(self.directory):
            path = self.directory / str(number) / "record.json"
            if number not in self._records and path.exists():
                record = read_record(path)
                is_measured = self.purpose == MEASURE
                self._records[number] = brief(record) if is_measured else record
                new.append(record)
        return new

    def is_complete(self) -> bool:
        """Whether a launch that is not measured needs no repetition."""
        return judge(self.records, 1).complete

    def settle(self, hosts: Hosts, stop: Stop, say: Callable[[str], None]) -> None:
        """Wait for launches of other processes; close those whose owner is dead.

        Args:
            hosts: those of the next launch.
            stop: whether this process was told to end.
            say: gets lines of progress.
        """
        told = False
        while claims := open_claims(self.directory):
            for number, directory in claims:
                alive = read_owner(directory).is_alive(directory)
                # Its owner may have ended with the record that it lacked before.
                if alive or (directory / "record.json").exists():
                    continue
                claimed = (directory / "claim.json").stat().st_mtime
                spec = self.attempt.spec(self, number, directory, hosts)
                why = "its supervisor died before the launch ended"
                ranks = range(spec.shape.ranks)
                logs = {rank: read_end(spec.log(rank)) for rank in ranks}
                if stands := describe_stands(logs):
                    why += f"; {stands}"
                outcome = Outcome("cancelled", why, "user")
                close_launch(spec, outcome, datetime.fromtimestamp(claimed, UTC))
                measured = self.purpose == MEASURE
                name = f"launch {number}" if measured else self.purpose
                say(f"  {name} was left unfinished: it is repeated")
            if open_claims(self.directory):
                if not told:
                    say("  waiting for a launch that another process measures")
                    told = True
                stop.heed()
                time.sleep(1)
        self.read()
