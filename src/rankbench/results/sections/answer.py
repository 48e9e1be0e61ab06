"""The answer: what people read first. In sentences, with the rows behind it."""

from __future__ import annotations

from collections.abc import Iterator

from rankbench.results.advice.answer import find_answer
from rankbench.results.advice.findings import Answer
from rankbench.results.advice.words import as_json, in_brief, in_detail
from rankbench.results.elements.section import Content, Row, Section
from rankbench.results.numbers.result_set import ResultSet
from rankbench.results.numbers.statistics import Estimate


def make(found: ResultSet) -> Content | None:
    """The sentences, and a row for each row that was compared."""
    if not found.rows:
        return None
    answer = find_answer(found)
    return Content(
        rows=list(_rows(answer)),
        grids=(),
        before=in_brief(answer),
        notes=in_detail(answer),
        facts=as_json(answer),
    )


def _rows(answer: Answer) -> Iterator[Row]:
    for facts in answer.workloads:
        choices = {"fastest": facts.fastest, "cheapest": facts.cheapest}
        for question, choice in choices.items():
            if choice is None:
                continue
            same = {"workload": facts.workload, "question": question}
            best = {"cell": choice.cell, "ratio": Estimate(1.0), "verdict": "best"}
            yield {**same, **best}
            for one in choice.rivals:
                yield {
                    **same,
                    "cell": one.cell,
                    "ratio": one.ratio,
                    "verdict": one.verdict,
                    "launches": one.launches,
                }


SECTION = Section(
    name="answer",
    title="Answer",
    reading=(
        "What is best and what it costs, what is untested, and what cannot be told. "
        "answer.json has the same values; sections/answer.csv has all rows with their "
        "ratio to the fastest and to the cheapest."
    ),
    order=-1,
    make=make,
    columns={
        **dict.fromkeys(("workload", "question", "cell"), str),
        "ratio": Estimate,
        "verdict": str,
        "launches": int,
    },
)
