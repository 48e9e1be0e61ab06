"""The answer in words: ten lines that people read first, and further findings."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from rankbench.invocation import rankbench_command
from rankbench.results.advice.answer import (
    WIDTH,
    Answer,
    find_all,
    find_answer,
    find_details,
)
from rankbench.results.advice.choice import Rival, to_json
from rankbench.results.elements.section import Content, Row, Section
from rankbench.results.elements.text import Note
from rankbench.results.numbers.result_set import ResultSet
from rankbench.results.numbers.statistics import Estimate

ANSWER_VERSION = 3

# What `answer.json` holds of a workload.
_IN_JSON = (
    *("workload", "unit", "names", "base", "best", "undecided"),
    *("fastest", "cheapest", "lost", "scaling", "next"),
)

LINES, TERM = 10, 10
COLUMNS = TERM + WIDTH

# Of more workloads, the ten lines have the first ones.
_MOST_WORKLOADS = 4

# Paragraphs of terms, the more important ones first.
_ORDER = (
    *("WHAT0", "BEST0", "TRUST0", "WHY0", "MORE0", "BUT0", "NEXT0", "BEST1"),
    *("BUT1", "SCALES0", "UNTESTED0", "LOST0", "COST0", "BEST2", "LOST1"),
)


def make(found: ResultSet) -> Content | None:
    """What is best and what it costs, what is untested, and what cannot be told.
    answer.json has the same values; sections/answer.csv has all rows with their ratio
    to the fastest and to the cheapest.
    """
    if not found.rows:
        return None
    answer = find_answer(found)
    before, notes = divide(answer)
    return Content(
        rows=list(_rows(answer)),
        grids=(),
        before=before,
        notes=notes,
        facts=as_json(answer),
    )


def _rows(answer: Answer) -> Iterator[Row]:
    for facts in answer.workloads:
        choices = {"fastest": facts.fastest, "cheapest": facts.cheapest}
        for question, choice in choices.items():
            if choice is None:
                continue
            best = Rival(cell=choice.cell, ratio=Estimate(1.0), verdict="best")
            for one in (best, *choice.rivals):
                yield {
                    "workload": facts.workload,
                    "question": question,
                    **{name: getattr(one, name) for name in Rival.__slots__},
                }


def as_json(answer: Answer) -> dict[str, Any]:
    """What `answer.json` holds: all findings, and the ten lines; ids stand for rows."""
    found = answer.found
    return {
        "schema": ANSWER_VERSION,
        "experiment": found.experiment,
        "source": found.source,
        "margin": answer.margin,
        "efficiency": answer.efficiency,
        "workloads": [
            {name: to_json(getattr(one, name)) for name in _IN_JSON}
            for one in answer.workloads
        ],
        "without_numbers": [
            {"status": status, "reason": reason, "cells": cells}
            for (status, reason), cells in found.reasons.items()
        ],
        "lines": to_lines(in_brief(answer)),
    }


def in_brief(answer: Answer) -> list[Note]:
    """The answer for all workloads, in at most ten lines of a terminal."""
    return divide(answer)[0]


def divide(answer: Answer) -> tuple[list[Note], list[Note]]:
    """The answer in at most ten lines of a terminal, and what they leave out.

    Of several workloads the first ones are named, with what is best for them.
    """
    said, rest = list(find_all(answer)), list(find_details(answer))
    if len(answer.workloads) > 1:
        every = (Note(one.term, "; ".join([one.text, *one.more])) for one in said)
        rest = [*every, *rest]
        source = answer.found.source
        command = rankbench_command("answer", **source, options=["--details"])
        said = [one._replace(more=()) for one in said if one.term in ("WHAT", "BEST")]
        said = [*said[: 2 * _MOST_WORKLOADS], Note("MORE", command)]
    # Each paragraph, the more important ones first, as long as there are lines.
    parts = [(one.term, place) for one in said for place in range(1 + len(one.more))]
    order = sorted(range(len(parts)), key=lambda at: _rank(*parts[at]))
    texts = [text for one in said for text in (one.text, *one.more)]
    # Pages join paragraphs to one.
    ends = ["" if text.endswith(":") else ";" for text in texts]
    left, taken = LINES, dict[int, list[str]]()
    for at in order:
        is_last = at + 1 == len(parts) or parts[at + 1][1] == 0
        lines = _wrap(texts[at] + ("" if is_last else ends[at]))
        # What follows a paragraph says nothing without it.
        if len(lines) <= left and (parts[at][1] == 0 or at - parts[at][1] in taken):
            left, taken[at] = left - len(lines), lines
    notes: list[Note] = []
    left_out: list[Note] = []
    for at, (term, place) in enumerate(parts):
        if at in taken:
            text = "\n".join(taken[at])
            if place and notes and notes[-1].term == term:
                text = f"{notes.pop().text}\n{text}"
            notes.append(Note(term, text))
        elif len(answer.workloads) < 2:
            left_out.append(Note(term, texts[at]))
    brief = [Note(note.term, note.text.removesuffix(";")) for note in notes]
    return brief, [*left_out, *rest]


def _rank(term: str, place: int) -> int:
    """How soon a paragraph of a term is said."""
    key = f"{term}{place}"
    return _ORDER.index(key) if key in _ORDER else len(_ORDER) + place


def to_lines(notes: Sequence[Note]) -> list[str]:
    """Notes as lines of a terminal: the term, and beside it what is said."""
    found = []
    for note in notes:
        first, *others = note.text.split("\n")
        found += [f"{note.term:<{TERM}}{first}", *(" " * TERM + m for m in others)]
    return found


def _wrap(text: str) -> list[str]:
    """Lines of a text; a command that needs several is still one for a shell."""
    found = []
    for part in text.split("\n"):
        end = " \\" if part.startswith("rankbench ") else ""
        *lines, last = textwrap.wrap(
            part, WIDTH - len(end), break_long_words=False, break_on_hyphens=False
        )
        found += [*(line + end for line in lines), last]
    return found


SECTION = Section(
    title="Answer",
    order=-1,
    make=make,
    columns={
        **dict.fromkeys(("workload", "question", "cell"), str),
        "ratio": Estimate,
        "verdict": str,
        "launches": int,
    },
)
