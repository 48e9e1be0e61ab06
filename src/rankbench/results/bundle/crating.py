"""Write the crate of a bundle, or of a bundle that is verified."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from rankbench.record import Record
from rankbench.results.bundle.manifest import MANIFEST, is_signature
from rankbench.results.crate.names import CRATE, README, README_TEXT
from rankbench.results.crate.write import make_crate


def write_crate(
    root: Path,
    names: Iterable[str],
    into: Path,
    plan: Record,
    records: Mapping[str, Record],
    *,
    anonymised: bool,
) -> None:
    """Write the crate of the bundle `root`, and its README, into a folder.

    A bundle without launches describes no run, and has none.

    Args:
        root: the bundle.
        names: its files.
        into: the folder.
        plan, records: of the bundle; records by the folder of the launch.
        anonymised: whether names of people are placeholders.

    Raises:
        ValueError: CITATION.cff is damaged; the message names it.
    """
    # None of them is there yet when the crate is written.
    later = (CRATE, README, MANIFEST)
    described = [n for n in sorted(names) if n not in later and not is_signature(n)]
    crate = make_crate(root, described, plan, records, anonymised=anonymised)
    if crate is not None:
        (into / CRATE).write_bytes(crate)
        (into / README).write_text(README_TEXT)
