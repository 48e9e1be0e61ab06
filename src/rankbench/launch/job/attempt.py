"""An attempt of a cell: what its launches share, and what each of them is told."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankbench.cell import Cell, Shape, Topology
from rankbench.environ import job_id
from rankbench.launch.hosts.base import Hosts
from rankbench.launch.images.checks import check_runs
from rankbench.launch.images.verify import check_file, check_signed, read_image
from rankbench.launch.job.provenance import describe_code
from rankbench.launch.job.requests import Request
from rankbench.launch.process.command import check_binds
from rankbench.launch.process.judge_gate import has_gate
from rankbench.launch.process.scratch import scratch_of
from rankbench.launch_spec import MEASURE, LaunchOptions, LaunchSpec
from rankbench.record import (
    GATE,
    PROFILE,
    Layout,
    Record,
    Verdict,
    check_version,
    judge,
    judge_gated,
    numbered,
    read_json,
    why_stale,
)
from rankbench.stopping import Enough, Launched, brief

Entry = dict[str, Any]


class Attempt:
    """The wanted attempt of a cell, with everything that its launches share.

    Attributes:
        id: of the cell.
        shape: its processes.
        code: description of the code that measures.
        data_dir: folder of the prepared data sets.
        measured, gate, profile: its launches, by purpose.
    """

    def __init__(
        self, layout: Layout, plan: Entry, entry: Entry, request: Request, project: Path
    ) -> None:
        self.id: str = entry["id"]
        self.directory = layout.attempt(self.id, request.attempt)
        self.request = request
        self.image_name: str | None = entry["image"]
        name = self.image_name
        self.image = None if name is None else dict(plan["images"][name])
        self._no_image: str | None = None
        if self.image is not None:
            try:
                self.image = read_image(self.image)
            except ValueError as error:
                # Only this host has the fault, and a record will name it.
                self.image["sha256"], self._no_image = None, str(error)
        self._image_is_good = self.image is None
        self.cell = Cell.from_dict(entry["cell"])
        self.shape = Shape(**entry["shape"])
        self.has_gate = plan["experiment"]["gate"] and has_gate(self.cell)
        self._plan, self._entry = plan, entry
        self.code = describe_code()
        # The frozen copy of each of the user's own files.
        self.own: dict[str, Path] = {
            kind: layout.own(one["digest"]).resolve() / one["file"]
            for kind, one in self.cell.own_digests.items()
        }
        # Plans of earlier versions do not have this key.
        signers = plan["site"].get("image_signers", [])
        self._signers = [(project / file).resolve() for file in signers]
        self.data_dir = (project / plan["site"]["data_dir"]).resolve()
        self.measured = Series(self, MEASURE, self.directory)
        self.gate = Series(self, GATE, self.directory / GATE)
        self.profile = Series(self, PROFILE, self.directory / PROFILE)

    def check_image(self) -> None:
        """Check once that the image is unchanged and starts here, with its binds.

        Raises:
            ValueError: it is not, or does not.
        """
        if self._image_is_good or self.image is None:
            return
        if self._no_image:
            raise ValueError(self._no_image)
        check_binds(self._plan["site"]["binds"])
        check_file(self.image)
        check_signed(self.image, self._signers)
        check_runs(Path(self.image["file"]))
        self._image_is_good = True

    def why_stale(self) -> str | None:
        """Why new launches would not belong to the attempt; None if they would."""
        return why_stale(
            self.measured.read_all(),
            cell_hash=self._entry["hash"],
            image=self.image,
            asked_hash=self.request.cell_hash,
        )

    def launched(self) -> Launched:
        """Its launches, as far as stopping rules read them."""
        return Launched(
            rule=self.request.rule,
            workload=self.cell.workload(),
            devices=Topology.parse(self.cell.topology).devices,
            is_base=self.cell.is_base,
            records=self.measured.records,
            beside=self.gate.records,
        )

    def verdict(self, enough: Enough | None) -> Verdict:
        """Judge the launches.

        Args:
            enough: why no further launch is needed, if a rule says so.
        """
        wanted = self.request.rule.at_most if enough is None else enough.after
        return judge_gated(self.gate.records, self.measured.records, wanted)

    @property
    def is_refused(self) -> bool:
        """Whether the gate found that the strategy trains something else."""
        return any(record["status"] == "mismatch" for record in self.gate.records)

    def spec(
        self,
        series: Series,
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
        entry, site, rule = self._entry, self._plan["site"], self.request.rule
        scratch = None
        if hosts.names:  # Hosts that are not known yet have no scratch folder.
            scratch = scratch_of(site["scratch"], job_id(), directory)
        return LaunchSpec(
            directory=directory.resolve(),
            cell=self.cell,
            shape=self.shape,
            data_dir=self.data_dir,
            phases=entry["phases"],
            threads=_threads(self.shape, site),
            heartbeat_grace=site["heartbeat_grace"],
            options=LaunchOptions.choose(self._plan["experiment"]),
            # An image has an interpreter of its own, found through its PATH.
            python=sys.executable if self.image is None else "python3",
            hosts=hosts.names,
            port=hosts.port(serial),
            has_ssh=hosts.has_ssh,
            interface=site["interface"],
            scratch=scratch,
            env=site["env"],
            binds=tuple(map(Path, site["binds"])),
            image=self.image,
            own=self.own,
            experiment=self._plan["experiment"]["name"],
            cell_id=self.id,
            cell_hash=entry["hash"],
            marks=entry["marks"],
            purpose=series.purpose,
            attempt=self.request.attempt,
            number=number,
            wanted=rule.at_most if series.purpose == MEASURE else 1,
            rule=None if isinstance(said := rule.to_json(), int) else said,
            round=turn,
            gate=self._find_gate(),
            code=self.code,
        )

    def _find_gate(self) -> dict[str, Any] | None:
        """The result of the gate; None if there was none or if it failed."""
        found: dict[str, Any] | None = None
        for record in self.gate.records:
            found = record.get("gate") or found
        return found


class Series:
    """The launches of an attempt that serve one purpose.

    Attributes:
        records: of the launches that have ended; `brief` ones if they are measured.
    """

    def __init__(self, attempt: Attempt, purpose: str, directory: Path) -> None:
        self.attempt, self.purpose, self.directory = attempt, purpose, directory
        self._records: dict[int, Record] = {}

    @property
    def records(self) -> list[Record]:
        return [self._records[number] for number in sorted(self._records)]

    def read_all(self) -> list[Record]:
        """Read all records, and keep what verdicts need of them.

        Raises:
            ValueError: a record is damaged or of another schema version.
        """
        self._records.clear()
        return self.read_new()

    def read_new(self) -> list[Record]:
        """Read the records of launches that have ended since."""
        new = []
        for number in numbered(self.directory):
            path = self.directory / str(number) / "record.json"
            if number not in self._records and path.exists():
                record = check_version(read_json(path), path)
                self._records[number] = self._keep(record)
                new.append(record)
        return new

    def _keep(self, record: Record) -> Record:
        return brief(record) if self.purpose == MEASURE else record

    def is_complete(self) -> bool:
        """Whether a launch that is not measured needs no repetition."""
        return judge(self.records, 1).complete


def _threads(shape: Shape, site: Entry) -> int:
    """CPU threads of a rank: one per core of its device, or its share of the host."""
    share = max(1, site["cores"] // shape.ranks_per_node)
    return int(shape.cores_per_rank or site["cpu_threads_per_gpu"] or share)
