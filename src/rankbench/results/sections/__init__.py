"""Tables and plots that people read, one file each. They are found automatically."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from types import ModuleType

from rankbench.results.elements.section import Section, read_docstring

# The version of the method that gives all numbers. Raise it if a CSV of the same plan
# and records would change: another method, another column, another wording. `verify`
# derives the numbers of a bundle again if their method is this one.
METHOD = 5


@cache
def load_sections() -> dict[str, Section]:
    """Name -> section, in the order of a document.

    Raises:
        TypeError: a file in this folder declares no section; the message names it.
    """
    names = [one.name for one in pkgutil.iter_modules(__path__)]
    return collect(importlib.import_module(f"{__name__}.{name}") for name in names)


def collect(modules: Iterable[ModuleType]) -> dict[str, Section]:
    """As `load_sections`, of these modules."""
    found: dict[str, Section] = {}
    for module in modules:
        section = getattr(module, "SECTION", None)
        if not isinstance(section, Section):
            raise TypeError(f"{module.__file__}: expected SECTION = Section(...)")
        name = module.__name__.rpartition(".")[2].replace("_", "-")
        said = section.reading
        reading = read_docstring(section.make) if said is None else said
        found[name] = replace(section, name=name, reading=reading)
    return dict(sorted(found.items(), key=lambda item: item[1].order))
