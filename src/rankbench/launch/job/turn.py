"""The place of a launch in a round."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rankbench.record import Record
from rankbench.stopping import round_of


@dataclass(frozen=True, slots=True)
class Turn:
    """The place of a launch in a round.

    Attributes:
        seed: of the order; rounds of one seed belong together.
        number: of the round, from 1.
        position: in the round, from 1.
        devices: those that the job holds meanwhile, idle ones too; None if there are
            none beside the cell's.
    """

    seed: int
    number: int
    position: int
    devices: int | None

    def to_json(self) -> dict[str, Any]:
        place = {"seed": self.seed, "number": self.number, "position": self.position}
        return place if self.devices is None else {**place, "devices": self.devices}


def find_rounds(records: Iterable[Record], seed: int) -> tuple[int, int]:
    """Return the rounds that a run goes on with, after an interruption.

    Args:
        records: of all cells that take turns.
        seed: of new rounds, if there are none to continue.

    Returns:
        The seed, and the number of the last round that began; 0 if none did.
    """
    rounds = [place for record in records if (place := round_of(record))]
    # Several seeds only meet if cells were measured at different times. The one that
    # most launches have gives the most pairs.
    seeds = [one for one, _ in rounds]
    if seeds:
        seed = max(dict.fromkeys(seeds), key=seeds.count)
    return seed, max((n for one, n in rounds if one == seed), default=0)


def draw(names: Sequence[str], seed: int, number: int) -> list[str]:
    """Return the order of the cells in a round; the same for the same arguments."""
    chance = random.Random(f"{seed}.{number}")
    return chance.sample(sorted(names), len(names))
