"""Two or more sides, cell by cell: what became better, worse, or stayed equal."""

from rankbench.results.compare.comparison import (
    FAIL,
    PASS,
    Comparison,
    compare,
    describe,
    to_json,
    write_page,
)
from rankbench.results.compare.sides import (
    CellLaunches,
    Side,
    encode_baseline,
    read_side,
    read_sides,
)

__all__ = [
    "FAIL",
    "PASS",
    "CellLaunches",
    "Comparison",
    "Side",
    "compare",
    "describe",
    "encode_baseline",
    "read_side",
    "read_sides",
    "to_json",
    "write_page",
]
