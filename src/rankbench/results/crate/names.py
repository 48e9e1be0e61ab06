"""The files of a crate."""

from __future__ import annotations

CRATE, README = OF_CRATE = "ro-crate-metadata.json", "README.md"

# For people who open an unpacked bundle; profiles of crates recommend such a file.
README_TEXT = """\
# Results measured by rankbench

This folder is a bundle: everything that is needed to check a table of results. Begin
with [table.md](table.md) or `table.html`.

- `rankbench verify FOLDER` compares all files with `manifest.json`, and derives the
  tables again from the plan and the records.
- `rankbench replay FOLDER` measures the same cells on another machine, and compares.
- `ro-crate-metadata.json` describes the files and launches for programs (RO-Crate).
- `CITATION.cff` says how to cite the software that measured.
"""
