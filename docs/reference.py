"""Makes the page of all commands and keys when the site is built (a hook of MkDocs)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rankbench.cli import build_parser, load_commands
from rankbench.commands import COMMANDS
from rankbench.schema import load_schema

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page to the site."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "reference.md", content=make_page()))
    return files


def make_page() -> str:
    """The page: commands from their parsers, keys from the schemas."""
    parts = ["# All commands and keys"]
    for title, name in (
        ("Keys of an experiment", "experiment"),
        ("Keys of `site.yaml`", "site"),
    ):
        parts += [f"## {title}", _make_table(load_schema(name)["properties"])]
    parts.append("## Commands")
    parsers = build_parser(*COMMANDS).commands
    for command in load_commands():
        help_text = parsers[command.name].format_help()
        parts += [f"### rankbench {command.name}", f"```text\n{help_text}```"]
    return "\n\n".join(parts) + "\n"


def _make_table(keys: dict[str, Any]) -> str:
    rows = ["| key | default | meaning |", "|---|---|---|"]
    for key, schema in keys.items():
        default = schema.get("default", "")
        # A list of one value is a key that may be swept.
        first = default[0] if isinstance(default, list) and default else default
        default = json.dumps(first).strip('"')
        said = schema.get("description", "").replace("|", "\\|")
        rows.append(f"| `{key}` | {f'`{default}`' if default else ''} | {said} |")
    return "\n".join(rows)
