"""The wanted attempt of each cell. It is set once and raised only by a rerun."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from rankbench.record import Layout, read_json, write_json


@dataclass(frozen=True, slots=True)
class Request:
    """A request for launches of a cell, as the cell was defined then.

    Attributes:
        budget: device-seconds that the launches of all cells may take; None: no limit.
        profile: whether a profile of it is wanted beside them.
    """

    attempt: int
    launches: int
    cell_hash: str
    profile: bool = False
    budget: float | None = None


def read_request(layout: Layout, cell_id: str) -> Request | None:
    path = layout.request(cell_id)
    if not path.exists():
        return None
    value = read_json(path)
    try:
        request = Request(**value)
        if request.launches < 1 or type(request.attempt) is not int:
            raise ValueError("expected numbers of launches and of an attempt")
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    return request


def make_request(
    layout: Layout, cell_id: str, *, again: bool = False, launches: int, **wanted: Any
) -> Request:
    """The request of a cell; the first one is made if there is none.

    Args:
        layout: the result directory.
        cell_id: the cell.
        again: ask for a new attempt; earlier measurements are kept.
        launches: so many in all.
        wanted: attributes of a request, without the attempt.
    """
    request = None
    with suppress(ValueError):  # A damaged one is replaced.
        request = read_request(layout, cell_id)
    if request is None or again:
        # Without a request there may be records, because the file was removed. Never
        # measure into an attempt that may be complete.
        used = [*layout.attempts(cell_id), request.attempt if request else 0]
        asked = Request(max(used) + 1, launches, **wanted)
    else:
        # The attempt stays the same: its launches are kept, and others are added.
        asked = replace(
            request,
            launches=launches,
            profile=request.profile or wanted.get("profile", False),
            budget=wanted.get("budget"),
        )
    if asked != request:
        write_json(layout.request(cell_id), asdict(asked))
    return asked
