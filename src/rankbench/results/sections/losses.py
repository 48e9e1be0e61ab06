"""Why a row does not scale further: what its step takes longer than promised."""

from __future__ import annotations

from typing import Any

from rankbench.results.elements.section import Content, Section
from rankbench.results.elements.text import Note
from rankbench.results.numbers.losses import PARTS, Loss, find_losses
from rankbench.results.numbers.result_set import ResultSet
from rankbench.results.numbers.statistics import Estimate


def make(found: ResultSet) -> Content | None:
    """Cells on several devices. With efficiency 1, a step would take the time of the
    base's step, scaled to the same share of the samples for each device. Lost is what
    it takes longer: means over rounds, with their intervals. The parts add up.
    computation: a typical rank computes longer. waiting: a typical rank waits for the
    slowest, in a pipeline for other stages. transfer: communication that nothing hides,
    up to the time that its bytes take in the sweep of the same cell; what exceeds that
    is unexplained. input: waiting for data and copying them. host: the GPU idles for no
    other reason. More overlap can save the transfer only.
    """
    losses = find_losses(found.rows)
    if not losses:
        return None
    notes = [Note(one.cell, said) for one in losses if (said := _explain(one))]
    return Content(rows=[_row(one) for one in losses], notes=notes)


def _row(one: Loss) -> dict[str, Any]:
    return {
        "cell": one.cell,
        "base": one.base,
        "step_ms": one.step,
        "promised_ms": one.promised,
        "lost_ms": one.lost,
        **{f"{name}_ms": part for name, part in one.parts.items()},
        "exchange_ms": one.exchange,
        "late_rank": None if one.late is None else one.late[0],
        "late_phase": None if one.late is None else one.late[1],
    }


def _explain(loss: Loss) -> str:
    """What the numbers of a row do not say."""
    said = []
    if loss.late:
        rank, phase = loss.late
        there = f" on {loss.late_host}" if loss.late_host else ""
        said.append(f"most waiting is for rank {rank}{there} in {phase}")
    if not loss.is_separate:
        said.append("computation has communication, which phases do not separate")
    return "; ".join(said)


SECTION = Section(
    title="Why not further",
    order=20,
    make=make,
    columns={
        "cell": (str, "cell"),
        "base": str,
        "step_ms": (float, "step (ms)"),
        "promised_ms": (float, "efficiency 1 (ms)"),
        **{f"{name}_ms": (Estimate, f"{name} (ms)") for name in ("lost", *PARTS)},
        "exchange_ms": float,
        "late_rank": int,
        "late_phase": str,
    },
)
