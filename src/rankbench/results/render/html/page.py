"""Write the page as one file with style, scripts, libraries and data.

Records never become markup: data and libraries are in blocks of base64, compressed by
gzip, our script writes data as text, and templates escape everything. The policy in the
head of the page allows this script by its hash and the libraries that it starts. It
allows no requests.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import itables.options
from bokeh.resources import Resources
from markupsafe import Markup

from rankbench.results.render.html.templates import (
    STATIC,
    make_environment,
    read_style,
)

if TYPE_CHECKING:
    from rankbench.results.render.document import Document

# The order matters: each script uses those before it.
_SCRIPTS = ("dom.js", "state.js", "table.js", "figures.js", "cell.js", "main.js")


def to_page(data: dict[str, Any], figures: dict[str, Any], document: Document) -> str:
    """The page of these data.

    Args:
        data: from `overview.describe_results`, with its downloads.
        figures: from `figures.make_figures`.
        document: the sections.
    """
    script = join_scripts(_SCRIPTS)
    environment = make_environment(document)
    macros: Any = environment.get_template("macros.html").module
    blocks = {
        "data": dump(data),
        "figures": dump(figures),
        "datatables": read_datatables(),
        "bokeh": read_bokeh(),
        **{
            # Large tables are built when the reader opens them.
            f"section-{made.name}": str(macros.section(made, True))
            for made in document.rest
        },
    }
    return environment.get_template("index.html").render(
        title=data["name"],
        description=data["description"],
        document=document,
        style=read_style(),
        script=Markup(script),  # noqa: S704
        script_hash=hash_script(script),
        blocks={name: pack(text) for name, text in blocks.items()},
    )


def read_datatables() -> str:
    """The module of DataTables that itables ships for offline use."""
    return Path(itables.options.dt_bundle).read_text(encoding="utf-8")


def read_bokeh() -> str:
    """BokehJS without widgets, in the version of the Python package."""
    source: str = Resources(mode="inline", components=["bokeh"]).js_raw[0]
    return source


def join_scripts(names: Sequence[str]) -> str:
    """Our scripts as one, in which each uses those before it."""
    script = "".join((STATIC / name).read_text() for name in names)
    return f'"use strict";\n(async () => {{\n{script}}})();\n'


def dump(value: Any) -> str:
    """A value as short JSON."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def pack(text: str) -> str:
    """A text as a block of the page, which dom.js unpacks."""
    return b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def hash_script(script: str) -> str:
    """The hash by which the policy of the page allows a script."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"sha256-{b64encode(digest).decode()}"
