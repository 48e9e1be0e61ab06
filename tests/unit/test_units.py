"""Throughput of language models is in tokens/s, wherever a number is shown."""

from __future__ import annotations

import pytest

from factories import make_record, read_experiment
from rankbench.record import Layout, describe_result
from rankbench.results.advice.answer import find_answer
from rankbench.results.compare.comparison import compare
from rankbench.results.compare.sides import CellLaunches, Side, read_side
from rankbench.results.numbers.result_set import read
from rankbench.results.prediction.mechanism import read_scale
from rankbench.results.render.formats import to_html
from unit.synthetic import (
    plan_cell,
    read_report,
    read_rows,
    write_cells,
    write_tables,
)

pytestmark = pytest.mark.unit

CONTEXT = 128
TOKENS = {"model": "gpt", "data": "tokens", "context": CONTEXT}
IDS = ("ddp.gloo.1x1.gpt.tokens", "ddp.gloo.1x2.gpt.tokens")
OF_IMAGES = "ddp.gloo.1x1.convnet.digits"


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """One row of images, and two of a language model: 10 and 15 sequences/s."""
    cells = [plan_cell(), *(plan_cell("ddp", t, **TOKENS) for t in ("1x1", "1x2"))]
    root = tmp_path_factory.mktemp("results")
    layout = write_cells(root, *cells, rates=(800, 10, 15))
    write_tables(layout)
    return layout


def rows_of(layout: Layout) -> dict[str, dict[str, str]]:
    return {row["cell"]: row for row in read_rows(layout)}


def test_a_cell_of_tokens_knows_its_context(tmp_path):
    text = "name: some\nstrategy: single\nmodel: gpt\ndata: tokens\n"
    one, other = (
        read_experiment(tmp_path, f"{text}{more}").cells
        for more in ("", "context: 128\n")
    )
    ((name, cell),) = one.items()
    assert name == "single.none.1x1.gpt.tokens"
    assert (cell.context, cell.unit, cell.units_per_sample) == (128, "tokens", 128)
    assert [same.hash() for same in other.values()] == [cell.hash()]


def test_the_table_has_tokens_per_second_and_of_a_device(layout):
    rows = rows_of(layout)
    assert rows[OF_IMAGES]["unit"] == "samples/s"
    assert rows[OF_IMAGES]["per_device"] == rows[OF_IMAGES]["throughput"]
    of_tokens = rows[IDS[1]]
    assert of_tokens["unit"] == "tokens/s"
    assert float(of_tokens["throughput"]) == pytest.approx(15 * CONTEXT, rel=0.01)
    assert float(of_tokens["per_device"]) == pytest.approx(7.5 * CONTEXT, rel=0.01)
    assert of_tokens["base"].endswith(" tokens/s")


def test_each_unit_has_its_own_column(layout):
    lines = layout.table("md").read_text().splitlines()
    heading = next(line for line in lines if "throughput (samples/s)" in line)
    columns = [part.strip() for part in heading.split("|")]
    for unit, filled in (("samples", [1, 0, 0]), ("tokens", [0, 1, 1])):
        place = columns.index(f"throughput ({unit}/s)")
        rows = [line.split("|") for line in lines if line.startswith("| ddp")]
        assert [bool(row[place].strip()) for row in rows] == [*map(bool, filled)]
    assert "a sample is a sequence of 128 tokens" in read_report(layout)
    rates = {
        (row["cell"], row["column"])
        for row in read_rows(layout, "diagnostics")
        if row["table"] == "Launches" and row["column"].startswith("throughput")
    }
    assert {name for name, _ in rates} == set(rows_of(layout))
    for name, column in rates:
        assert column == f"throughput ({'tokens' if 'tokens' in name else 'samples'}/s)"


def test_the_answer_names_the_unit(layout):
    _, facts = find_answer(read(layout)).workloads
    assert facts.unit == "tokens/s"
    assert facts.rows[IDS[1]].rate == pytest.approx(1929, abs=1)


def test_plots_and_page_name_the_unit(layout):
    found = read(layout)
    document = write_tables(layout)
    assert [panel.unit for panel in found.panels] == ["samples", "tokens"]
    drawings = {one.name: one for one in document.drawings}
    for name in ("throughput", "per_device"):
        axes = drawings[name].draw(7.0).axes
        labels = {t for one in axes for t in (one.get_xlabel(), one.get_ylabel())}
        assert len({"tokens/s", "tokens/s of each device"} & labels) == 1
        assert ("samples/s" in labels) == (name == "throughput")
    page = to_html(document, found)
    assert f"<dt>context</dt><dd>{CONTEXT}</dd>" in page
    assert "throughput (tokens/s)" in page


def test_a_comparison_and_a_history_keep_the_unit(layout):
    kept = read_side(layout.root).cells
    units = {name: cell.unit for name, cell in kept.items()}
    assert units == {OF_IMAGES: "samples", **dict.fromkeys(IDS, "tokens")}
    assert kept[IDS[0]].throughput[0] == pytest.approx(10 * CONTEXT, rel=0.05)


def test_published_numbers_of_another_unit_are_not_compared(tmp_path):
    path = tmp_path / "published.csv"
    path.write_text("cell,throughput,unit\na,5,tokens/s\nb,5,\n")
    published = read_side(path)
    units = {name: cell.unit for name, cell in published.cells.items()}
    assert units == {"a": "tokens", "b": "samples"}
    ok = {"hash": "1", "status": "ok", "reason": None, "launches": 6}
    new = CellLaunches(**ok, throughput=(4.0,) * 6, unit="tokens")
    side = Side(name="new", experiment="x", cells={"a": new, "b": new})
    of_tokens, of_images = compare([published, side], at_least=0.95).cells
    assert of_tokens.why == ""
    assert of_images.why == "tokens/s; the base has samples/s"


def test_a_prediction_is_fitted_to_steps(layout):
    """Its steps are those of the row, although the row is in tokens/s."""
    (summary,) = [s for s in read(layout).rows if s.id == IDS[1]]
    step = read_scale(summary).step
    assert step == pytest.approx(summary.numbers["step_ms"].value / 1e3, rel=0.02)


def test_progress_names_the_unit():
    record = make_record(samples=10, ranks=[{"window_s": 2.0}])
    assert describe_result({**record, "cell": {"context": None}}) == "5 samples/s"
    assert describe_result({**record, "cell": {"context": 16}}) == "80 tokens/s"
    found = {"lossy": False, "loss_error": 0.0, "weights_error": 6e-15}
    record = make_record(purpose="gate", gate=found)
    assert describe_result(record) == "as single within 6e-15"
    found["lossy"] = True
    assert describe_result(record) == "lossy, loss within 0"
