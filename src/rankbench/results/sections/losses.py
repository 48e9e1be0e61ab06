"""Why a row does not scale further: what its step takes longer than promised."""

from __future__ import annotations

from typing import Any

from rankbench.results.elements.section import Content, Section
from rankbench.results.elements.text import Note, figures, show_estimate
from rankbench.results.numbers.losses import PARTS, Loss, find_losses
from rankbench.results.numbers.result_set import ResultSet
from rankbench.results.numbers.statistics import Estimate


def make(found: ResultSet) -> Content | None:
    """A row for each row on several devices that has a base."""
    losses = find_losses(found.rows)
    if not losses:
        return None
    notes = [Note(one.cell, in_words(one)) for one in losses]
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


def in_words(loss: Loss) -> str:
    """The numbers of a row as sentences."""
    steps = f"a step takes {figures(round(loss.step, 3))} ms"
    promised = f"{figures(round(loss.promised, 3))} ms would be efficiency 1"
    if not loss.is_certain:
        # A part may be certain although the sum is not.
        sure = "; ".join(
            f"{_ms(part)} of it are {_describe(name, loss)}"
            for name, part in loss.parts.items()
            if (part.low or 0.0) > 0
        )
        told = f"What it loses in all cannot be told; {sure}" if sure else ""
        return (
            f"{steps}; {promised}. {told or 'That it loses anything cannot be told'}."
        )
    text = f"{steps}; {promised}. Lost: {_ms(loss.lost)}, of it "
    text += ", ".join(
        f"{_ms(part)} of {_describe(name, loss)}"
        for name, part in sorted(loss.parts.items(), key=lambda one: -one[1].value)
        if abs(part.value) >= 0.005 * abs(loss.lost.value)
    )
    return f"{text}."


def _describe(name: str, loss: Loss) -> str:
    if name == "waiting" and loss.late:
        rank, phase = loss.late
        there = f" on {loss.late_host}" if loss.late_host else ""
        return f"{PARTS[name]}, most for rank {rank}{there} in {phase}"
    return loss.describe(name)


def _ms(part: Estimate) -> str:
    return f"{show_estimate(part)} ms"


SECTION = Section(
    name="losses",
    title="Why not further",
    reading=(
        "Cells on several devices. With efficiency 1, a step would take the time of "
        "the base's step, scaled to the same share of the samples for each device. "
        "Lost is what it takes longer: means over rounds, with their intervals. The "
        "parts add up. computation: a typical rank computes longer. waiting: a "
        "typical rank waits for the slowest, in a pipeline for other stages. transfer: "
        "communication that nothing hides, up to the time that its bytes take in the "
        "sweep of the same cell; what exceeds that is unexplained. input: waiting for "
        "data and copying them. host: the GPU idles for no other reason. More overlap "
        "can save the transfer only."
    ),
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
