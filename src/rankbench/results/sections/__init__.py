"""Tables and plots that people read, one file each. They are found automatically."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from functools import cache
from types import ModuleType

from rankbench.results.elements.section import Section, Versions


@cache
def load_sections() -> dict[str, Section]:
    """Name -> section, in the order of a document.

    Raises:
        TypeError: a file in this folder declares no section, or two have one name; the
            message names the file.
    """
    names = [one.name for one in pkgutil.iter_modules(__path__)]
    return collect(
        importlib.import_module(f"{__name__}.{name}")
        for name in names
        if not name.startswith("_")
    )


def collect(modules: Iterable[ModuleType]) -> dict[str, Section]:
    """As `load_sections`, of these modules."""
    found: dict[str, Section] = {}
    for module in modules:
        section = getattr(module, "SECTION", None)
        if not isinstance(section, Section):
            raise TypeError(f"{module.__file__}: expected SECTION = Section(...)")
        if section.name in found:
            raise TypeError(
                f"{module.__file__}: another file declares the section {section.name!r}"
            )
        found[section.name] = section
    return dict(sorted(found.items(), key=lambda item: item[1].order))


def list_versions() -> Mapping[str, Versions]:
    """Versions of every section and, as plots/NAME, of every plot."""
    sections = load_sections().values()
    tables = {one.name: one.versions for one in sections if one.columns}
    plots = {
        f"plots/{name}": versions
        for one in sections
        for name, versions in one.plots.items()
    }
    return tables | plots
