"""When the budget of a run is spent: jobs and tables both ask this module.

Standard library only. A decision follows from the plan and the records alone, so
`rankbench verify` can derive it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean

from rankbench.record import Record, counting


@dataclass(slots=True)
class LaunchHistory:
    """The launches of one attempt of a cell, as far as the budget depends on them.

    Attributes:
        wanted: how many there shall be.
        devices: of the cell.
        records: of all its launches, or `brief` ones.
        beside: records of launches that are not measured, such as the gate's.
    """

    wanted: int
    devices: int
    records: list[Record] = field(default_factory=list)
    beside: list[Record] = field(default_factory=list)

    def cost(self, record: Record) -> float:
        """Device-seconds of a launch, with idle devices of a shared allocation."""
        held = (record["round"] or {}).get("devices") or self.devices
        return float(held * (record["seconds"].get("launch") or 0.0))


def brief(record: Record) -> Record:
    """The part of a record that verdicts and the budget depend on.

    The supervisor of a thousand cells keeps these, not the records.
    """
    kept = (
        *("status", "reason", "cause", "launch", "round", "cell_hash", "image"),
        *("repeats", "shape", "surroundings", "devices", "stall", "seconds"),
    )
    return {key: record[key] for key in kept if key in record}


def find_ended(
    cells: Mapping[str, LaunchHistory], budget: float | None
) -> dict[str, int]:
    """Find the cells that get no further launch, as the next round exceeds the budget.

    Before the first launch of a cell nothing is known of its cost. That a round fits
    into the budget at all is checked before anything starts.

    Args:
        cells: by id, those that were asked for.
        budget: device-seconds of all launches together; None for no limit.

    Returns:
        By id, the number of launches that count; {} unless the budget is spent.
    """
    if budget is None:
        return {}
    counted = {name: len(counting(cell.records)) for name, cell in cells.items()}
    waiting = [name for name, cell in cells.items() if counted[name] < cell.wanted]
    spent = sum(
        cell.cost(record)
        for cell in cells.values()
        for record in (*cell.records, *cell.beside)
    )
    # The next launch of a cell takes as long as those before.
    following = sum(
        fmean(map(cells[name].cost, cells[name].records))
        for name in waiting
        if cells[name].records
    )
    is_spent = spent + following > budget
    return {name: counted[name] for name in waiting} if is_spent else {}
