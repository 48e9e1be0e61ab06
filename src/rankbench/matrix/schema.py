"""Reads and checks YAML files; every error names file, key and expected value."""

from __future__ import annotations

import copy
import difflib
import math
import re
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend

from rankbench.assets import find_asset

SCHEMAS = find_asset("workflow/schemas")

Schema = dict[str, Any]


def load_schema(name: str) -> Schema:
    """Read the schema ``workflow/schemas/NAME.schema.yaml``."""
    return load_yaml(SCHEMAS / f"{name}.schema.yaml")


def load_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping.

    Raises:
        ValueError: the file cannot be read, is not YAML, or is not a mapping.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error
    try:
        value = yaml.load(text, Loader=_UniqueKeyLoader)  # noqa: S506 (a SafeLoader)
    except _StrangeNumberError as error:
        raise ValueError(f"{path}: {error}") from error
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: is not YAML: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(
            f"{path}: expected keys with values at the top level, got {_kind(value)}"
        )
    return value


# The parser in C, if PyYAML has it: long lists take a tenth of the time.
_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _StrangeNumberError(ValueError):
    """YAML reads a value otherwise than a person does."""


# Octal and sexagesimal numbers of YAML 1.1, and underscores that part no thousands.
_STRANGE = re.compile(r"[-+]?(0[0-9_]+|.*:.*|(?!0[xb]|\d{1,3}(_\d{3})+(\.|$)).*_.*)")
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


def _refuse_strange_numbers(key: object, node: Any) -> None:
    for inner in node.value if isinstance(node, yaml.SequenceNode) else ():
        _refuse_strange_numbers(key, inner)
    if node.tag in _NUMBERS and _STRANGE.fullmatch(node.value):
        raise _StrangeNumberError(
            f"line {node.start_mark.line + 1}: {key}: {node.value} means "
            f"{yaml.safe_load(node.value)} in YAML: write that, or a number without "
            f"leading zeros, colons and underscores, or '{node.value}' for a text"
        )


class _UniqueKeyLoader(_SafeLoader):
    """Refuses duplicate keys, because plain YAML silently keeps only the last one.

    And numbers that are not what they look like: 064 is 52, and 1:30 is 90.
    """

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue  # its keys are defaults, which others may replace
            if isinstance(key_node, yaml.ScalarNode):
                key_node.tag = "tag:yaml.org,2002:str"  # an override may be named 07
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                continue  # the base class raises the error
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} appears twice", key_node.start_mark
                )
            seen.add(key)
            _refuse_strange_numbers(key, value_node)
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found


_NO_LINE_BREAK = r"(?!\n)"

# YAML 1.1 reads 1e-3, the common spelling of a learning rate, as text.
_UniqueKeyLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+"),
    list("-+0123456789"),
)


def keys_of(schema: Schema, scope: str = "sweep") -> list[str]:
    """The keys of a scope; by default those that can be swept, such as `strategy`."""
    rules = schema["properties"].items()
    return [key for key, rule in rules if rule.get("x-scope", "sweep") == scope]


def with_defaults(values: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """Fill in defaults for missing keys; keys are in the order of the schema."""
    filled = {}
    for key, rule in schema["properties"].items():
        default = copy.deepcopy(rule.get("default"))
        filled[key] = _spelled_as(default, values[key]) if key in values else default
    return filled


def _spelled_as(default: Any, value: Any) -> Any:
    """The default if the value equals it, so that 0 and 0.0 make the same cell."""
    if isinstance(default, list) and isinstance(value, list):
        return [next((d for d in default if d == v), v) for v in value]
    return default if value == default else value


def check(values: Mapping[str, Any], schema: Schema, *, source: str) -> None:
    """Check values against a schema.

    Raises:
        ValueError: there are mistakes; a line for each names file, key, expected value
            and a similar name.
    """
    errors = sorted(
        _Validator(schema).iter_errors(values),
        key=lambda e: [str(part) for part in e.absolute_path],
    )
    if errors:
        lines = [line for error in errors for line in _explain(error, schema)]
        # jsonschema reports each missing key alone, and _explain reports all of them.
        unique = dict.fromkeys(lines)
        raise ValueError("\n".join(f"{source}: {line}" for line in unique))


def _is_integer(_checker: object, value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(_checker: object, value: object) -> bool:
    return _is_integer(_checker, value) or (
        isinstance(value, float) and math.isfinite(value)
    )


# JSON Schema accepts 64.0 as an integer, and YAML's .inf and .nan as numbers. Counts
# need a real integer, and a record cannot hold infinity or NaN.
_Validator = extend(
    Draft202012Validator,
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine_many(
        {"integer": _is_integer, "number": _is_number}
    ),
)


def fits(values: Mapping[str, Any], properties: Schema) -> bool:
    """Whether all these keys are present and match their schemas."""
    schema = {"required": list(properties), "properties": properties}
    return bool(_Validator(schema).is_valid(values))


def did_you_mean(word: object, names: Iterable[str]) -> str:
    """`; did you mean 'ddp'?`, or an empty string if no name is similar."""
    near = difflib.get_close_matches(
        str(word).lower(), [str(n) for n in names], n=1, cutoff=0.6
    )
    return f"; did you mean {near[0]!r}?" if near else ""


def _explain(error: ValidationError, whole: Schema) -> list[str]:
    where = ".".join(
        str(part) for part in error.absolute_path if not isinstance(part, int)
    )
    found: Any = error.instance
    rule: Any = error.validator_value
    schema: Any = error.schema
    prefix = f"{where}: " if where else ""
    if error.validator == "additionalProperties":
        known = list(schema["properties"])
        return [
            f"{prefix}unknown key {key!r}{did_you_mean(key, known)} "
            f"(known keys: {', '.join(known)})"
            for key in found
            if key not in known
        ]
    if error.validator == "required":
        missing = [key for key in rule if key not in found]
        return [f"{prefix}the key {key!r} is missing" for key in missing]
    if error.validator == "enum":
        known = ["null" if value is None else str(value) for value in rule]
        return [
            f"{prefix}{found!r} is not one of {', '.join(known)}"
            f"{did_you_mean(found, known)}"
        ]
    if error.validator == "uniqueItems":
        twice = sorted({str(v) for v in found if found.count(v) > 1})
        return [f"{prefix}{', '.join(twice)} listed twice"]
    if error.validator == "minItems":
        return [f"{prefix}expected at least one value, got an empty list"]
    expected = _expectation(error)
    about = whole["properties"][error.absolute_path[0]].get("description")
    meaning = f" ({about})" if about else ""
    return [f"{prefix}expected {expected}, got {_kind(found)} {found!r}{meaning}"]


_LIMITS = {
    "minimum": "at least",
    "minProperties": "at least",
    "maximum": "at most",
    "maxProperties": "at most",
    "exclusiveMinimum": "more than",
    "exclusiveMaximum": "less than",
}


def _expectation(error: ValidationError) -> str:
    rule: Any = error.validator_value
    if error.validator == "type":
        kinds = [rule] if isinstance(rule, str) else rule
        return " or ".join(kinds)
    if error.validator in _LIMITS:
        schema: Any = error.schema
        keys = ", ".join(schema.get("properties", ()))
        return f"{_LIMITS[error.validator]} {rule}" + (keys and f" of the keys {keys}")
    if error.validator == "pattern":
        # Hide the part of the pattern that stops $ from matching before a line break.
        return f"text like {rule.removesuffix(_NO_LINE_BREAK)}"
    if error.validator == "anyOf":
        return " or ".join(str(r.get("const", r.get("type"))) for r in rule)
    return str(error.message)


def _kind(value: object) -> str:
    names = {
        "bool": "boolean",
        "NoneType": "null",
        "str": "string",
        "int": "integer",
        "float": "number",
        "dict": "object",
        "list": "list",
    }
    return names.get(type(value).__name__, type(value).__name__)
