"""How often cells are launched: the keys `launches` and `budget` of an experiment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rankbench.matrix.schema import did_you_mean
from rankbench.stopping import BEST, FIRST_LOOK, UNTIL, Rule

_MOST = 1000


def read_rule(value: int | Mapping[str, Any]) -> Rule:
    """Read the key `launches`: a number, or such as ``{until: 3%, at_most: 40}``.

    Raises:
        ValueError: it is neither; says what is expected.
    """
    if isinstance(value, int):
        return Rule(value)
    known = (UNTIL, BEST, "at_most")
    for key in value:
        if key not in known:
            raise ValueError(
                f"launches: unknown key {key!r}{did_you_mean(key, known)} "
                f"(known keys: {', '.join(known)})"
            )
    kinds = [kind for kind in (UNTIL, BEST) if kind in value]
    if len(kinds) != 1:
        raise ValueError(f"launches: give {UNTIL} or {BEST}, one of them")
    at_most = value.get("at_most")
    if not isinstance(at_most, int) or not FIRST_LOOK <= at_most <= _MOST:
        raise ValueError(
            f"launches.at_most: expected an integer from {FIRST_LOOK} to {_MOST}, got "
            f"{at_most!r} (the launches are first looked at after {FIRST_LOOK}; for "
            "fewer, give a number: launches: 6)"
        )
    (kind,) = kinds
    return Rule(at_most, kind, _read_share(value[kind], f"launches.{kind}"))


def _read_share(value: object, key: str) -> float:
    """Read ``3%`` or ``0.03``."""
    text = str(value).strip()
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(%?)", text)
    share = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if not 0 < share < 1:
        raise ValueError(
            f"{key}: expected a share of more than 0 and less than 100 %, such as 3%, "
            f"got {value!r}"
        )
    return share


def read_budget(value: str | None) -> float | None:
    """Read the key `budget`: ``4 device-hours`` is 14400 device-seconds.

    Raises:
        ValueError: it is 0.
    """
    if value is None:
        return None
    hours = float(value.split()[0])
    if not hours > 0:
        raise ValueError(f"budget: expected more than 0 device-hours, got {value!r}")
    return 3600 * hours
