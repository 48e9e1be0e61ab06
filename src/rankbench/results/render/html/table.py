"""table.html: the table and its sections as one file, without scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankbench.results.render.html.templates import make_environment, read_style

if TYPE_CHECKING:
    from rankbench.results.render.document import Document


def to_html(document: Document) -> str:
    """The page. It needs no other file but the plots."""
    template = make_environment(document).get_template("table.html")
    return template.render(document=document, style=read_style())
