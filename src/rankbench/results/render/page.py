"""The table as a web page that needs no other file but the plots."""

from __future__ import annotations

from collections.abc import Sequence

import jinja2

from rankbench.results.elements.content import Section
from rankbench.results.elements.notes import Note
from rankbench.results.elements.text import SHOWN, Text

_STYLE = """\
:root { --ink: #1c2430; --faint: #5d6878; --line: #dfe3ea; --head: #f3f5f8; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 90rem; padding: 2rem 1.5rem 4rem; color: var(--ink);
  background: #fff; font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { margin: 0; font-size: 1.7rem; }
h2 { margin: 2.5rem 0 .75rem; font-size: 1.15rem; }
h3 { margin: 1.5rem 0 .5rem; font-size: 1rem; }
.sub { margin: .25rem 0 1.5rem; color: var(--faint); }
.scroll { max-height: 85vh; overflow: auto; border: 1px solid var(--line);
  border-radius: 8px; }
table { width: 100%; border-collapse: separate; border-spacing: 0; font-size: .87rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .45rem .6rem; border-bottom: 1px solid var(--line);
  text-align: left; vertical-align: top; white-space: nowrap; }
thead th { vertical-align: bottom; white-space: normal; }
tr:last-child td { border-bottom: 0; }
thead th { position: sticky; top: 0; z-index: 2; background: var(--head);
  font-weight: 600; }
td:first-child, th:first-child { position: sticky; left: 0; background: #fff; }
td:first-child { max-width: 24rem; white-space: normal; overflow-wrap: anywhere; }
thead th:first-child { z-index: 3; background: var(--head); }
tbody tr:hover td { background: #f8fafc; }
td.number, th.number { text-align: right; }
.interval { display: block; color: var(--faint); font-size: .78rem; }
td.words { white-space: normal; overflow-wrap: anywhere; }
td.reason { white-space: normal; color: var(--faint); }
code { font: .92em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
.status { display: inline-block; padding: 0 .55em; border-radius: 1em;
  background: #fde8e8; color: #9b1c1c; }
.status.ok { background: #e3f5e9; color: #14633a; }
.status.unsupported, .status.not-run { background: #eef0f4; color: #4a5464; }
.status.stale, .status.cancelled { background: #fdf1d8; color: #7a4d06; }
figure { margin: 0 0 2rem; max-width: 62rem; }
figure img { display: block; width: 100%; height: auto; }
figcaption { color: var(--faint); font-size: .87rem; }
dl { display: grid; grid-template-columns: minmax(8rem, max-content) 1fr;
  gap: .35rem 1.25rem; margin: 0; font-size: .87rem; }
dt { font-weight: 600; overflow-wrap: anywhere; }
dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 40rem) { dl { display: block; } dd { margin-bottom: .6rem; } }
@media print { .scroll { max-height: none; overflow: visible; border: 0; } }
"""

_PAGE = """\
{%- macro listed(notes) %}
{%- if notes %}
<dl>
{%- for note in notes %}
<dt>{{ note.term }}</dt><dd>{{ note.text }}</dd>
{%- endfor %}
</dl>
{%- endif %}
{%- endmacro -%}
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }} - rankbench</title>
<style>
{{ style | safe }}</style>
</head>
<body>
<h1>{{ title }}</h1>
<p class="sub">{{ rows | length }} cells, {{ ok }} ok &middot;
all columns: <a href="table.csv">table.csv</a></p>
<div class="scroll">
<table>
<thead>
<tr>
<th scope="col">cell</th>
<th scope="col">status</th>
<th scope="col">launches</th>
{%- for column in numbers %}
<th scope="col" class="number">{{ column }}</th>
{%- endfor %}
<th scope="col">marks</th>
</tr>
</thead>
<tbody>
{%- for row in rows %}
<tr>
<td><code>{{ row.cell }}</code></td>
<td><span class="status {{ row.status }}">{{ row.status }}</span></td>
<td>{{ row.launches }}</td>
{%- if row.reason.value %}
<td class="reason" colspan="{{ numbers | length }}">{{ row.reason }}</td>
{%- else %}
{%- for column in numbers %}
<td class="number">{{ row[column].value }}
{%- if row[column].interval %} <span class="interval">{{ row[column].interval }}</span>
{%- endif %}</td>
{%- endfor %}
{%- endif %}
<td>{{ row.marks }}</td>
</tr>
{%- endfor %}
</tbody>
</table>
</div>
{%- for section in sections %}
<h2>{{ section.title }}</h2>
{%- if section.about or section.files %}
<p class="sub">{{ section.about }}
{%- if section.files %} All columns:
{%- for name in section.files %} <a href="{{ name | urlencode }}">{{ name }}</a>
{%- if not loop.last %},{% endif %}
{%- endfor %}
{%- endif %}</p>
{%- endif %}
{{- listed(section.before) }}
{%- for name, caption in section.plots %}
{%- set path = ("plots/" ~ name ~ ".svg") | urlencode %}
<figure>
<a href="{{ path }}"><img src="{{ path }}" alt="{{ caption }}"></a>
<figcaption>{{ caption }}</figcaption>
</figure>
{%- endfor %}
{%- for grid in section.grids %}
{%- if grid.title != section.title %}
<h3>{{ grid.title }}</h3>
{%- endif %}
<div class="scroll">
<table>
<thead>
<tr>
{%- for column, number in grid.columns.items() %}
<th scope="col"{% if number %} class="number"{% endif %}>{{ column }}</th>
{%- endfor %}
</tr>
</thead>
<tbody>
{%- for row in grid.rows %}
<tr>
{%- for text in row %}
<td class="{{ 'number' if loop.index0 in grid.numbers else 'words' }}">
{%- if text.href %}<a href="{{ text.href | urlencode }}">{{ text.value }}</a>
{%- elif loop.first %}<code>{{ text.value }}</code>
{%- else %}{{ text.value }}{% endif %}
{%- if text.interval %} <span class="interval">{{ text.interval }}</span>
{%- endif %}</td>
{%- endfor %}
</tr>
{%- endfor %}
</tbody>
</table>
</div>
{%- endfor %}
{{- listed(section.notes) }}
{%- endfor %}
<h2>Notes</h2>
{{- listed(notes) }}
</body>
</html>
"""

PLOTS = Section(
    title="Plots",
    plots=[
        (
            "scaling",
            "Throughput against devices. Large: medians; beside them every launch and "
            "the 95% interval; hollow: ranks share a core or a GPU; dashed: the ideal.",
        ),
        (
            "efficiency",
            "Efficiency against devices: medians and 95% intervals. Points beside each "
            "other have equally many devices.",
        ),
        ("phases", "Mean time of a step by phase, over ranks, steps and launches."),
        (
            "steps",
            "Every timed step of every launch, and the median of each launch: where "
            "launches lie apart, no number of steps would have shown it.",
        ),
        ("memory", "Peak memory of every rank in every launch."),
        (
            "curves",
            "Loss while training, mean over the ranks that know it: the median of the "
            "launches, and their range as a band. Cells that train alike lie on each "
            "other; a gap is a loss that is no number.",
        ),
        ("time", "The same over time: who gets there first."),
    ],
)


def to_html(
    title: str,
    rows: Sequence[dict[str, Text]],
    notes: Sequence[Note],
    sections: Sequence[Section],
) -> str:
    """The whole page; every text in it is escaped."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    return environment.from_string(_PAGE).render(
        title=title,
        style=_STYLE,
        rows=rows,
        ok=sum(not row["reason"].value for row in rows),
        numbers=[column for column, name in SHOWN.items() if name],
        notes=notes,
        sections=[PLOTS, *sections],
    )
