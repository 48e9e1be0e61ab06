"""Strategies and models with every combination of their options."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from rankbench.matrix.catalog import Catalog, StrategyFacts
from rankbench.matrix.schema import check, did_you_mean, with_defaults

# The option that stands for several options of a model.
PRESET = "preset"


def expand_strategies(
    entries: list[Any], catalog: Catalog
) -> list[tuple[StrategyFacts, dict[str, Any]]]:
    """Each strategy with each combination of its options: (facts, options)."""
    options = {name: facts.options for name, facts in catalog.strategies.items()}
    return [
        (catalog.strategies[name], resolved)
        for name, resolved in _expand_variants("strategy", entries, options)
    ]


def expand_models(
    entries: list[Any], catalog: Catalog
) -> list[tuple[str, dict[str, Any]]]:
    """Each model with each combination of its options: (name, options)."""
    models = catalog.models.items()
    options = {name: facts["options"] for name, facts in models}
    # `build(**options)` takes what the experiment gives it.
    opened = {name for name, facts in models if facts.get("open")}
    presets = {name: facts["presets"] for name, facts in models if facts.get("presets")}
    return _expand_variants("model", entries, options, opened, presets)


def check_data(entries: list[Any], catalog: Catalog) -> None:
    for name in entries:
        if name not in catalog.data:
            raise ValueError(
                f"data: {name!r} is not one of {', '.join(catalog.data)}"
                f"{did_you_mean(name, catalog.data)}"
            )


# An example of a name with options, for messages.
_EXAMPLES = {
    "strategy": "{ddp: {bucket_mb: [1, 25]}}",
    "model": "{emulated: {layers: [4, 8]}}",
}


def _expand_variants(
    key: str,
    entries: list[Any],
    known: Mapping[str, Mapping[str, Any]],
    opened: Collection[str] = (),
    presets: Mapping[str, Mapping[str, dict[str, Any]]] | None = None,
) -> list[tuple[str, dict[str, Any]]]:
    """Each variant with each combination of its options: (name, options).

    Args:
        key: of the experiment.
        entries: names, or one name with its options.
        known: name of a variant -> schema of each of its options.
        opened: names of variants that take options beyond the known ones.
        presets: name of a variant -> name of a preset -> values of its options.
    """
    expanded = []
    for entry in entries:
        if isinstance(entry, Mapping) and len(entry) == 1:
            ((name, options),) = entry.items()
        else:
            name, options = entry, {}
        if not isinstance(name, str):
            raise ValueError(
                f"{key}: expected a name, or one name with its options such as "
                f"{_EXAMPLES[key]}, got {entry!r}"
            )
        if name not in known:
            raise ValueError(
                f"{key}: {name!r} is not one of {', '.join(known)}"
                f"{did_you_mean(name, list(known))}"
            )
        given = {} if options is None else options
        place, more = f"{key}.{name}", name in opened
        preset = (presets or {}).get(name, {})
        for resolved in _expand_options(place, known[name], given, preset, opened=more):
            expanded.append((name, resolved))
    return expanded


def _expand_options(
    place: str,
    known: Mapping[str, Any],
    options: Mapping[str, Any],
    presets: Mapping[str, dict[str, Any]],
    *,
    opened: bool,
) -> Iterator[dict[str, Any]]:
    if not isinstance(options, Mapping):
        raise ValueError(f"{place}: expected options, got {options!r}")
    schema = {"type": "object", "additionalProperties": opened, "properties": known}
    lists = {k: v if isinstance(v, list) else [v] for k, v in options.items()}
    for option, values in lists.items():
        if not values:
            raise ValueError(
                f"{place}: {option}: expected at least one value, got an empty list"
            )
    choose_preset = {"properties": {PRESET: {"enum": list(presets)}}}
    for combination in itertools.product(*lists.values()):
        chosen = dict(zip(lists, combination, strict=True))
        if presets and PRESET in chosen:
            name = chosen.pop(PRESET)
            check({PRESET: name}, choose_preset, source=place)
            # What the experiment gives replaces what the preset says.
            chosen = {**presets[name], **chosen}
        check(chosen, schema, source=place)
        missing = [o for o in known if "default" not in known[o] and o not in chosen]
        if missing:
            raise ValueError(f"{place}: the option {missing[0]!r} is missing")
        more = {k: v for k, v in chosen.items() if k not in known}
        yield with_defaults(chosen, schema) | more
