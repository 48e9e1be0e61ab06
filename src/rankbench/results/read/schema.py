"""Check plans, records and runs of a store against their schemas before they are used.

They may come in a bundle of unknown origin: nothing in them is trusted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import fastjsonschema

from rankbench.record import LONGEST_JSON, Record, read_versioned
from rankbench.schema import compile_schema, load_schema

# Bytes, by kind.
_LONGEST = {"record": 4 * 1024**2}
_SHOWN = 60  # Number of characters that are shown of a refused value.


def read_checked(path: Path, kind: str, *, version: int) -> Record:
    """Read a JSON file and check it against ``workflow/schemas/KIND.schema.yaml``.

    Args:
        path: the file.
        kind: `plan`, `record` or `history`.
        version: of its schema.

    Raises:
        ValueError: it is damaged or of another version. The message names the file, the
            key and what was expected.
    """
    longest = _LONGEST.get(kind, LONGEST_JSON)
    value = read_versioned(path, kind, version, longest=longest)
    check(value, kind, path)
    return value


def check(value: Any, kind: str, path: Path) -> None:
    """Check a value against ``workflow/schemas/KIND.schema.yaml``.

    Raises:
        ValueError: it does not match; the message names the path.
    """
    try:
        _checker(kind)(value)
    except fastjsonschema.JsonSchemaValueException as error:
        # ``ranks[0].window_s must be number (found 'fast')``
        said = re.sub(r"^data\.?", "", error.message).strip()
        if error.rule not in ("required", "dependencies"):
            # The beginning of the value, without characters that a terminal obeys.
            text = repr(error.value)
            shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
            said += f" (found {shown})"
        raise ValueError(f"{path} is damaged: {said}") from None


@cache
def _checker(kind: str) -> Callable[[Any], Any]:
    # Aliases in place of `$ref`: compiled checks format their position at every
    # reference, which takes longer than the check itself.
    return compile_schema(load_schema(kind), all_errors=False)
