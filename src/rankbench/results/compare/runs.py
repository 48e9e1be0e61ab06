"""Several runs in one table, with the answer of each and a plot of all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankbench.record import Layout
from rankbench.results.advice.answer import find_answer
from rankbench.results.advice.words import in_brief, to_lines
from rankbench.results.compare.comparison import ComparedCell, compare
from rankbench.results.compare.sides import (
    CellLaunches,
    Side,
    find_differing,
    make_side,
    read_side,
)
from rankbench.results.compare.text import (
    mean_throughput,
    printable,
    show_launches,
    show_values,
    tabulate_rows,
)
from rankbench.results.elements import plotting
from rankbench.results.elements.names import shorten
from rankbench.results.elements.section import Drawing, spell_ends
from rankbench.results.elements.text import Grid, Note, Text, one_line, show_estimate
from rankbench.results.numbers.fit import confidence_of_each
from rankbench.results.numbers.result_set import read
from rankbench.results.numbers.statistics import CONFIDENCE, geometric_mean
from rankbench.results.read.archive import open_results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Of a row that is not compared with that of the first run.
OTHER_MACHINE = "another machine"
# Facts of hosts that make them another machine. Hosts of a cluster are alike.
_OF_MACHINE = ("cpu", "cores", "memory (GiB)", "GPUs")

# Terms of an answer that are shown of each run.
_SHOWN = ("WHAT", "USE")

_QUESTION = "Which run is the fastest?"

# A plot with more rows could not be read. Inches of a row.
_MOST_ROWS, _ROW = 60, 0.25


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One run of several.

    Attributes:
        side: its launches.
        answer: what was measured, and what to use; none of a baseline.
    """

    side: Side
    answer: Sequence[Note] = ()


# Run and cell, in the order of a table.
Rows = Sequence[tuple[ComparedRun, ComparedCell]]


def read_run(path: Path) -> ComparedRun:
    """Read a result folder, a bundle or a baseline.

    Raises:
        ValueError: the path leads to none of them, or a file is damaged.
    """
    if path.is_file() and path.suffix in (".json", ".csv"):
        return ComparedRun(read_side(path))
    with open_results(path) as directory:
        found = read(Layout(directory))
        rows = {row.id: row for row in found.results.rows}
        side = make_side(str(path), found.results.experiment, found.layout, rows)
        notes = in_brief(find_answer(found))
        return ComparedRun(side, [note for note in notes if note.term in _SHOWN])


def compare_runs(runs: Sequence[ComparedRun]) -> Rows:
    """The cells of several runs, each compared with that of the first run.

    Cells of different machines are not compared. All brackets hold at once.

    Args:
        runs: two or more.

    Returns:
        Run and cell, in the order of the runs; cells with the same id follow each
        other. Those that are compared with nothing, as in the first run, have an empty
        verdict or `OTHER_MACHINE`, and their launches as `old`, too.
    """
    (first, *others), rows = runs, []
    each = confidence_of_each(len(others), CONFIDENCE)
    for run in runs:
        base, cells = first.side.cells, run.side.cells
        common = cells.keys() & base.keys() if run is not first else set()
        apart = {
            name
            for name in common
            if find_differing(base[name].facts, cells[name].facts).keys()
            & {*_OF_MACHINE}
        }
        alike = {name: cell for name, cell in cells.items() if name in common - apart}
        found = {}
        if alike:
            side = replace(run.side, cells=alike)
            compared = compare(first.side, side, confidence=each)
            found = {cell.id: cell for cell in compared.cells}
        for name, cell in cells.items():
            verdict = OTHER_MACHINE if name in apart else ""
            alone = ComparedCell(id=name, verdict=verdict, old=cell, new=cell)
            rows.append((run, found.get(name, alone)))
    order = list(dict.fromkeys(cell.id for _, cell in rows))
    return sorted(rows, key=lambda row: order.index(row[1].id))


def runs_to_text(runs: Sequence[ComparedRun], rows: Rows) -> str:
    """What differs between the runs, the answer of each, and a line for each cell."""
    lines = []
    if facts := _describe_facts(runs):
        lines += ["The runs differ in:", *(f"  {n.term}  {n.text}" for n in facts), ""]
    for run in runs:
        if run.answer:
            lines += [run.side.name, *to_lines(run.answer), ""]
    table = _make_grid(runs, rows)
    shown = [list(map(str, row)) for row in table.rows]
    lines += [tabulate_rows(shown, *table.columns), "", _count(rows)]
    return printable("\n".join(lines))


def runs_to_json(rows: Rows) -> list[dict[str, Any]]:
    """A mapping for each cell of each run."""
    return [
        {
            "run": run.side.name,
            "cell": cell.id,
            "status": own.status,
            "reason": own.reason,
            "marks": list(own.marks),
            "throughput": mean_throughput(own),
            "unit": f"{own.unit}/s",
            "launches": len(own.throughput),
            "verdict": cell.verdict or None,
            **spell_ends("ratio", cell.ratio),
        }
        for run, cell in rows
        if (own := cell.new)
    ]


def describe_page(
    name: str, runs: Sequence[ComparedRun], rows: Rows
) -> tuple[str, Sequence[Note], Grid, Drawing]:
    """Title, notes, table and plot of a page.

    Args:
        name: of the plot's file.
    """
    answers = [
        Note(run.side.name, " ".join(note.text for note in run.answer))
        for run in runs
        if run.answer
    ]
    notes = [*answers, *_describe_facts(runs), Note("verdicts", _count(rows))]
    drawing = Drawing(
        name=name,
        question=_QUESTION,
        caption=(
            "Mean over the launches of a cell in each run, every launch (small), and "
            "the 95 % interval of the mean. Runs of one panel share a machine."
        ),
        draw=partial(_draw, rows),
    )
    title = ", ".join(run.side.name for run in runs)
    return title, notes, _make_grid(runs, rows), drawing


def _describe_facts(runs: Sequence[ComparedRun]) -> list[Note]:
    """What differs between the runs: a note for each fact of each run."""
    first, *others = (run.side for run in runs)
    facts: dict[str, dict[str, Sequence[str]]] = {}
    for side in others:
        for key, (old, new) in find_differing(first.facts, side.facts).items():
            facts.setdefault(key, {first.name: old})[side.name] = new
    return [
        Note(key, one_line(f"{name}: {show_values(values)}"))
        for key, by_run in facts.items()
        for name, values in by_run.items()
    ]


def _make_grid(runs: Sequence[ComparedRun], rows: Rows) -> Grid:
    columns = ("cell", "run", "throughput (launches)", f"/ {runs[0].side.name}", "")
    fields = [
        [
            Text(cell.id),
            Text(run.side.name),
            Text(show_launches(cell.new, run.side.disturbed.get(cell.id, ()))),
            show_estimate(cell.ratio),
            Text(cell.verdict),
        ]
        for run, cell in rows
    ]
    return Grid("Cells of all runs", dict.fromkeys(columns, False), fields)


def _count(rows: Rows) -> str:
    """How many cells have which verdict."""
    counts = Counter(cell.verdict for _, cell in rows if cell.verdict)
    said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    return f"{said or 'nothing was compared'}, at {100 * CONFIDENCE:g} % confidence"


def _draw(rows: Rows, width: float) -> Figure:
    """Throughput of each row, with a panel for each machine and unit."""
    names, _ = shorten([cell.id for _, cell in rows])
    runs = dict.fromkeys(run.side.name for run, _ in rows)
    styles = {
        name: plotting.Style(
            f"C{place}", plotting.MARKERS[place % len(plotting.MARKERS)]
        )
        for place, name in enumerate(runs)
    }
    panels: dict[tuple[str, str], list[tuple[str, str, list[float]]]] = {}
    measured = [
        (run, cell.id, own)
        for run, cell in rows
        if (own := cell.new) and own.throughput
    ]
    for run, name, own in measured[:_MOST_ROWS]:
        panel = panels.setdefault((_name_machine(own), own.unit), [])
        gone = run.side.disturbed.get(name, ())
        rates = [rate for n, rate in enumerate(own.throughput) if n not in gone]
        panel.append((run.side.name, names[name], rates))
    figure, grid = plotting.make_figure(
        [_ROW * len(panel) + 0.7 for panel in panels.values()] or [1.0],
        width=width,
        question=_QUESTION,
    )
    for (axes,), ((machine, unit), panel) in zip(grid, panels.items(), strict=False):
        plotting.write_title(axes, machine)
        numbers = [geometric_mean(rates) for _, _, rates in panel]
        for place, (name, _, rates) in enumerate(panel):
            style, number = styles[name], numbers[place]
            plotting.draw_interval(
                axes, place, number, color=style.color, horizontal=True
            )
            plotting.draw_launches(axes, rates, [place] * len(rates), style)
            axes.plot([number.value], [place], style.marker, ms=5.5, color=style.color)
        plotting.finish_rows(
            axes,
            [name for _, name, _ in panel],
            [str(show_estimate(number)) for number in numbers],
            end=1.05 * max(max(n.value, n.high or 0) for n in numbers),
            beyond=[rates for _, _, rates in panel],
        )
        axes.set_xlabel(f"{unit}/s")
    handles = [
        plotting.make_line(name, color=style.color, ls="", marker=style.marker)
        for name, style in styles.items()
    ]
    few = f"the first {_MOST_ROWS} of {len(measured)} rows"
    plotting.add_legend(figure, handles, few if len(measured) > _MOST_ROWS else "")
    return figure


def _name_machine(cell: CellLaunches) -> str:
    """``16 cores of AMD EPYC 9654, 755 GiB, 8 x NVIDIA H100``."""
    cpu, cores, memory, gpus = (
        show_values(cell.facts.get(key, ())) for key in _OF_MACHINE
    )
    said = one_line(f"{cores} cores of {cpu}, {memory} GiB")
    return said if gpus in ("none", "unknown") else f"{said}, {one_line(gpus)}"
