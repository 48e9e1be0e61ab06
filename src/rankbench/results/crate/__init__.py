"""The RO-Crate of a bundle: ``ro-crate-metadata.json``, a Workflow Run Crate.

It says in JSON-LD what other files of the bundle say in their own words: the workflow,
its inputs and outputs, and each launch as an action. Everything in it follows from
these files, so the same bundle gives the same bytes.
"""

from rankbench.results.crate.links import check_links
from rankbench.results.crate.write import (
    CRATE,
    CRATE_NAME,
    OF_CRATE,
    README,
    README_TEXT,
    VERSIONS,
    make_crate,
)

__all__ = [
    "CRATE",
    "CRATE_NAME",
    "OF_CRATE",
    "README",
    "README_TEXT",
    "VERSIONS",
    "check_links",
    "make_crate",
]
