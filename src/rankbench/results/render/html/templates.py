"""The templates of all pages."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import jinja2
from markupsafe import Markup

if TYPE_CHECKING:
    from rankbench.results.render.document import Document


STATIC = files("rankbench.results.render.html") / "static"


def read_style() -> Markup:
    """The style sheet of all pages."""
    return Markup((STATIC / "style.css").read_text())  # noqa: S704


def make_environment(document: Document) -> jinja2.Environment:
    """Templates that escape everything and show cells by their short names."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: (STATIC / name).read_text()),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters["short"] = document.name
    environment.filters["address"] = lambda cell: f"#{urlencode({'cell': cell})}"
    environment.tests["cell"] = lambda text: text in document.names
    return environment
