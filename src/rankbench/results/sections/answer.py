"""The answer: what people read first. In sentences, with the rows behind it."""

from __future__ import annotations

from rankbench.results.advice.answer import find_answer
from rankbench.results.advice.choice import Facts
from rankbench.results.advice.words import in_brief, in_sentences
from rankbench.results.elements.section import Content, Section
from rankbench.results.elements.section import Row as Shown
from rankbench.results.numbers.result_set import ResultSet
from rankbench.results.numbers.statistics import Estimate


def make(found: ResultSet) -> Content | None:
    """The sentences, and a row for each row that may be the fastest or the cheapest."""
    if not found.summaries:
        return None
    answer = find_answer(found)
    rows = [
        {"workload": workload["workload"], "question": question, **row}
        for workload in answer["workloads"]
        for question in ("fastest", "cheapest")
        if question in workload
        for row in _rows(workload[question])
    ]
    return Content(
        rows=rows,
        grids=(),
        before=in_brief(answer),
        notes=in_sentences(answer),
        facts=answer,
    )


def _rows(chosen: Facts) -> list[Shown]:
    best: Shown = {
        "cell": chosen["cell"],
        "ratio": Estimate(1.0),
        "verdict": "best",
        "launches": None,
    }
    return [
        best,
        *(
            {**one, "ratio": one["ratio"] and Estimate.from_json(one["ratio"])}
            for one in chosen["rivals"]
        ),
    ]


SECTION = Section(
    name="answer",
    title="Answer",
    reading=(
        "What to use, what cannot be told, and what to launch next. answer.json has "
        "the same values; sections/answer.csv has the rows that may be the fastest or "
        "the cheapest, with their ratio to the best."
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
