"""The files of a crate, and its entry in the list of a bundle's sections."""

from __future__ import annotations

from rankbench.results.elements.section import Versions

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

# Name and versions of the crate in the list of a bundle's sections.
CRATE_NAME, VERSIONS = "ro-crate", Versions(numbers=1, presentation=1)
