"""Merges the layers of an experiment file: its top level, its blocks, an override."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankbench.cell import safe_name
from rankbench.matrix.schema import (
    Schema,
    check,
    did_you_mean,
    load_yaml,
    with_defaults,
)

# Keys that an override cannot replace.
_FIXED = ("name", "blocks", "overrides", "source")


@dataclass(frozen=True)
class Block:
    """One sweep.

    Attributes:
        place: name of the block in errors: ``block 3``; empty if the file has none.
        values: key that is swept -> list of its values; and keys of a block.
        published: rows of the source that the cell of this block repeats.
    """

    place: str
    values: dict[str, Any]
    published: Sequence[dict[str, Any]] = field(default_factory=list)


def read_layers(
    path: Path, schema: Schema, override: str | None
) -> tuple[dict[str, Any], list[Block]]:
    """Read an experiment file and apply an override.

    Args:
        path: the YAML file.
        schema: schema of an experiment.
        override: the name of one of the file's overrides, or None.

    Returns:
        The values of all keys, and the sweeps.

    Raises:
        ValueError: a key of the file is wrong, or there is no such override.
    """
    given = _with_lists(load_yaml(path), schema)
    of_block = [*keys_of(schema), *keys_of(schema, "block")]
    _check_top(given, schema, source=str(path))
    overrides = _read_overrides(given, schema, source=str(path))
    if override is not None and override not in overrides:
        raise ValueError(
            f"{path}: override {override!r}: there is no such override"
            f"{did_you_mean(override, overrides)} "
            f"(this file has: {', '.join(overrides) or 'none'})"
        )
    replaced = {} if override is None else overrides[override]
    top = {**given, **replaced}
    values = with_defaults(top, schema)
    name = values["name"] if override is None else f"{values['name']}-{override}"
    values["name"] = safe_name(name)
    if not values["blocks"]:
        return values, [Block("", {key: values[key] for key in of_block})]
    blocks = []
    for number, entry in enumerate(given["blocks"], 1):
        block = _read_block(entry, schema, source=f"{path}: block {number}")
        published = block.pop("published", [])
        merged = {**top, **block, **replaced}
        if not merged.get("strategy") and not merged.get("script"):
            raise ValueError(f"{path}: block {number}: the key 'strategy' is missing")
        complete = with_defaults(merged, schema)
        chosen = {key: complete[key] for key in of_block}
        blocks.append(Block(f"block {number}", chosen, published))
    return values, blocks


def keys_of(schema: Schema, scope: str = "sweep") -> list[str]:
    """The keys of a scope; by default those that can be swept, such as `strategy`."""
    rules = schema["properties"].items()
    return [key for key, rule in rules if rule.get("x-scope", "sweep") == scope]


@contextmanager
def naming(place: str) -> Iterator[None]:
    """Prefix each line of a ValueError with the place, unless that is empty."""
    try:
        yield
    except ValueError as error:
        if not place:
            raise
        lines = str(error).splitlines()
        raise ValueError("\n".join(f"{place}: {line}" for line in lines)) from error


def _check_top(given: Mapping[str, Any], schema: Schema, *, source: str) -> None:
    """Check all keys except those within blocks, which `_read_block` checks.

    `_read_block` names the block in its errors.
    """
    properties = dict(schema["properties"])
    properties["blocks"] = {**properties["blocks"], "items": {}}
    required = [
        key
        for key in schema["required"]
        if key != "strategy" or not (given.get("blocks") or given.get("script"))
    ]
    check(
        given, {**schema, "properties": properties, "required": required}, source=source
    )


def _read_overrides(
    given: Mapping[str, Any], schema: Schema, *, source: str
) -> dict[str, dict[str, Any]]:
    """All overrides of the file by name; each is checked, even if it is not used."""
    properties = schema["properties"]
    allowed = {key: rule for key, rule in properties.items() if key not in _FIXED}
    overrides = {}
    for name, keys in given.get("overrides", {}).items():
        place = f"{source}: overrides"
        check(
            {"name": name}, {"properties": {"name": properties["name"]}}, source=place
        )
        listed = _with_lists(keys, schema)
        check(
            listed,
            {"properties": allowed, "additionalProperties": False},
            source=f"{place}.{name}",
        )
        overrides[name] = listed
    return overrides


def _read_block(entry: Any, schema: Schema, *, source: str) -> dict[str, Any]:
    if not isinstance(entry, Mapping):
        raise ValueError(f"{source}: expected keys with values, got {entry!r}")
    rule = schema["properties"]["blocks"]["items"]
    own = rule["properties"]
    keys = (*keys_of(schema), *keys_of(schema, "block"))
    sweeps = {key: schema["properties"][key] for key in keys}
    block = _with_lists(entry, {"properties": {**sweeps, **own}})
    check(block, {**rule, "properties": {**sweeps, **own}}, source=source)
    return block


def _with_lists(given: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """Turn a single value into a list of one, for keys that take a list."""
    rules = schema["properties"]
    lists = {key for key in given if rules.get(key, {}).get("type") == "array"}
    return {
        key: [value] if key in lists and not isinstance(value, list) else value
        for key, value in given.items()
    }
