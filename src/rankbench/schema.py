"""Reads and checks YAML files; every error names file, line, key and expected value."""

from __future__ import annotations

import copy
import difflib
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache, reduce
from pathlib import Path
from typing import Any

import fastjsonschema
from ruamel.yaml import YAML
from ruamel.yaml.constructor import ConstructorError, SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.tokens import AliasToken

from rankbench.assets import find_asset
from rankbench.schedulers import SCHEDULERS

SCHEMAS = find_asset("workflow/schemas")

Schema = dict[str, Any]


def load_schema(name: str) -> Schema:
    """Read the schema ``workflow/schemas/NAME.schema.yaml``."""
    return copy.deepcopy(_read_schema(name))


@cache
def _read_schema(name: str) -> Schema:
    schema = load_yaml(SCHEMAS / f"{name}.schema.yaml")
    keys = schema.get("properties", {})
    for each in (keys, keys.get("site", {}).get("properties", {})):
        if "scheduler" in each:
            each["scheduler"]["enum"] = [*SCHEDULERS]
    return schema


def load_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping.

    Raises:
        ValueError: the file cannot be read, is not YAML, or is not a mapping.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error
    value = parse_yaml(text, str(path))
    if not isinstance(value, dict):
        raise ValueError(
            f"{path}: expected keys with values at the top level, got {_kind(value)}"
        )
    return value


def parse_yaml(text: str, source: str, *, aliases: bool = True) -> Any:
    """The value that a text in YAML 1.2 stands for; its keys are texts.

    Args:
        text: may come from a stranger: nothing but plain values is made of it.
        source: of the text, for errors.
        aliases: whether it may have any, which can make a small text a huge value.

    Raises:
        ValueError: it is not YAML, or has a key twice.
    """
    try:
        tokens = () if aliases else _parser().scan(text)
        if any(isinstance(token, AliasToken) for token in tokens):
            raise ValueError(f"{source}: expected YAML without aliases")
        return _parser().load(text)
    except (YAMLError, RecursionError) as error:
        line, said = "", str(error)
        if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
            line, said = f":{error.problem_mark.line + 1}", str(error.problem)
        raise ValueError(f"{source}{line}: is not YAML: {said}") from error


def dump_yaml(value: Any) -> str:
    """The value as YAML, in the order of its keys."""
    written = io.StringIO()
    writer: Any = _parser()
    writer.default_flow_style = False
    writer.sort_base_mapping_type_on_output = False
    writer.dump(value, written)
    return written.getvalue()


class _Constructor(SafeConstructor):
    """Makes the values that JSON has."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        for key, _ in node.value:
            if isinstance(key, ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                key.tag = "tag:yaml.org,2002:str"  # an override may be named 07
        return super().construct_mapping(node, deep)

    def construct_yaml_float(self, node: Any) -> Any:
        value = super().construct_yaml_float(node)
        if not math.isfinite(value):
            said = f"expected a number, got {node.value}"
            raise ConstructorError(None, None, said, node.start_mark)
        return value


_Constructor.add_constructor(
    "tag:yaml.org,2002:float", _Constructor.construct_yaml_float
)
_Constructor.add_constructor(
    "tag:yaml.org,2002:timestamp", SafeConstructor.construct_yaml_str
)


def _parser() -> YAML:
    # The parser in C reads YAML 1.1, where 064 is 52, 1:30 is 90, and on is true.
    parser = YAML(typ="safe", pure=True)
    parser.Constructor = _Constructor
    return parser


# --- the line of an error -------------------------------------------------------------


@contextmanager
def in_file(path: Path, *, override: str | None = None) -> Iterator[None]:
    """Begin each line of a ValueError with a YAML file and the line that it is about.

    The keys that an error begins with lead there: ``block 2: strategy.ddp: ...``.

    Args:
        path: the file.
        override: name of the override whose keys replace others.
    """
    try:
        yield
    except ValueError as error:
        # It could be read a moment ago.
        root = _parser().compose(path.read_text())
        replaced = _child(_child(root, "overrides"), override)
        scopes = [scope for scope in (replaced, root) if scope is not None]
        lines = [_point(path, scopes, said) for said in str(error).splitlines()]
        raise ValueError("\n".join(lines)) from error


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


@contextmanager
def gather() -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Raise one ValueError with the lines of all checks that fail.

    It gives the context in which a check may fail.
    """
    lines: dict[str, None] = {}

    @contextmanager
    def each() -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            lines.update(dict.fromkeys(str(error).splitlines()))

    yield each
    if lines:
        raise ValueError("\n".join(lines))


def _point(path: Path, scopes: Sequence[Node], said: str) -> str:
    found = None
    for word in re.split(r": |\.", said):
        block = re.fullmatch(r"block (\d+)", word)
        steps: list[str | int] = ["blocks", int(block[1])] if block else [word]
        below = [node for scope in scopes if (node := reduce(_child, steps, scope))]
        if not below:
            break
        found = below[0]
        # A block has what it lacks from the top level.
        scopes = [found, *scopes] if block else [found]
    # A wrong value or an unknown key is quoted.
    quoted = [
        (place, node)
        for scope in scopes[:1]
        for node in _names(scope)
        if (place := said.find(repr(node.value))) >= 0
    ]
    if quoted:
        found = min(quoted, key=lambda pair: pair[0])[1]
    line = f":{found.start_mark.line + 1}" if found is not None else ""
    return f"{path}{line}: {said}"


def _child(node: Any, step: str | int | None) -> Any:
    """What stands below a key, or at a place of a list, which begins with 1."""
    if isinstance(node, SequenceNode):
        if isinstance(step, int):
            return node.value[step - 1] if step <= len(node.value) else None
        return next(filter(None, (_child(item, step) for item in node.value)), None)
    merged = None
    for key, value in node.value if isinstance(node, MappingNode) else ():
        if key.value == step:
            # An empty or short value stands in the line of its key.
            return value
        if key.value == "<<":
            merged = _child(value, step)
    return merged


def _names(node: Node) -> Iterator[ScalarNode]:
    """The keys or values of a node that are words."""
    if isinstance(node, ScalarNode):
        yield node
    for item in node.value if not isinstance(node, ScalarNode) else ():
        name = item[0] if isinstance(item, tuple) else item
        if isinstance(name, ScalarNode):
            yield name
        elif isinstance(name, MappingNode):
            yield from _names(name)


# --- checking -------------------------------------------------------------------------


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


def check(values: Mapping[str, Any], schema: Schema, *, source: str = "") -> None:
    """Check values against a schema.

    Raises:
        ValueError: there are mistakes; a line for each names the source, the key, the
            expected value and a similar name.
    """
    known = schema["properties"]
    # A schema of all keys takes long to compile.
    wanted = values.keys() | {*schema.get("required", ())}
    given = {key: rule for key, rule in known.items() if key in wanted}
    lines = []
    told: set[str | None] = set()
    for error in _find_errors(values, {**schema, "properties": given}):
        if error.name in told and error.rule not in _OF_KEYS:
            continue  # A value of another type breaks other rules, too.
        told.add(error.name)
        # The first part of a path is `data`.
        path = error.path[1:]
        whole = error.definition if path else schema
        about = known.get(path[0], {}).get("description") if path else None
        where = ".".join(part for part in path if not part.isdecimal())
        prefix = f"{where}: " if where else ""
        lines += [f"{prefix}{said}" for said in _explain(error, whole, about)]
    for key, rule in given.items():
        for value in _fractions(values.get(key), rule):
            about = rule.get("description")
            said = _say_got("integer", value, about)
            lines.append(f"{key}: {said}")
    if lines:
        start = f"{source}: " if source else ""
        raise ValueError("\n".join(f"{start}{line}" for line in dict.fromkeys(lines)))


# Rules about the keys of a value.
_OF_KEYS = ("additionalProperties", "required")


def fits(values: Mapping[str, Any], properties: Schema) -> bool:
    """Whether all these keys are present and match their schemas."""
    schema = {"required": list(properties), "properties": properties}
    return not _find_errors(values, schema)


def compile_schema(schema: Schema, *, all_errors: bool) -> Callable[[Any], Any]:
    """A function that checks a value; it raises a `JsonSchemaException`."""
    check: Callable[[Any], Any] = fastjsonschema.compile(
        schema, use_default=False, fast_fail=not all_errors
    )
    return check


def _find_errors(
    value: Any, schema: Schema
) -> list[fastjsonschema.JsonSchemaValueException]:
    try:
        _compiled(json.dumps(schema))(value)
    except fastjsonschema.JsonSchemaValuesException as error:
        return list(error.errors)
    return []


@cache
def _compiled(schema: str) -> Callable[[Any], Any]:
    rules = json.loads(schema)
    # Sweeps name what each key means here.
    rules["$schema"] = "http://json-schema.org/draft-07/schema#"
    return compile_schema(rules, all_errors=True)


def _fractions(value: Any, rule: Any) -> Iterator[float]:
    """Fractions where a rule wants an integer. JSON Schema accepts 64.0 as one."""
    if isinstance(value, float) and "integer" in (kinds := rule.get("type", ())):
        if "number" not in kinds:
            yield value
    elif isinstance(value, list):
        for item in value:
            yield from _fractions(item, rule.get("items", {}))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _fractions(item, rule.get("properties", {}).get(key, {}))


def _explain(
    error: fastjsonschema.JsonSchemaValueException, schema: Schema, about: str | None
) -> list[str]:
    """What is wrong: one line, or one for each key that is unknown or missing.

    Args:
        error: one rule that one value breaks.
        schema: the rules for the value.
        about: the meaning of the key.
    """
    found, broken = error.value, str(error.rule)
    rule: Any = schema[broken]
    if broken == "additionalProperties":
        known = list(schema["properties"])
        elsewhere = schema.get("x-elsewhere", {})
        listed = f" (known keys: {', '.join(known)})"
        hints = {
            key: elsewhere.get(key) or did_you_mean(key, known) or listed
            for key in found
            if key not in known
        }
        return [f"unknown key {key!r}{hint}" for key, hint in hints.items()]
    if broken == "required":
        return [f"the key {key!r} is missing" for key in rule if key not in found]
    if broken == "propertyNames":
        names = [(name, one) for name in found for one in _find_errors(name, rule)]
        return [line for _, one in names for line in _explain(one, rule, None)]
    if broken == "enum":
        known = [v if isinstance(v, str) else json.dumps(v) for v in rule]
        said = f"{found!r} is not one of {', '.join(known)}"
        return [said + did_you_mean(found, known)]
    if broken == "uniqueItems":
        twice = sorted({str(v) for v in found if found.count(v) > 1})
        return [f"{', '.join(twice)} listed twice"]
    if broken == "minItems":
        return ["expected at least one value, got an empty list"]
    return [_say_got(_expectation(broken, schema), found, about)]


def _say_got(expected: str, found: object, about: str | None) -> str:
    meaning = f" ({about})" if about else ""
    if "boolean" in expected:
        meaning += did_you_mean(found, ["true", "false"])
    return f"expected {expected}, got {_kind(found)} {found!r}{meaning}"


_LIMITS = {
    "minimum": "at least",
    "minLength": "text of a length of at least",
    "minProperties": "at least",
    "maximum": "at most",
    "maxProperties": "at most",
    "exclusiveMinimum": "more than",
    "exclusiveMaximum": "less than",
}
_NO_LINE_BREAK = r"(?!\n)"


def _expectation(name: str, schema: Schema) -> str:
    rule: Any = schema[name]
    # Hide the part of the pattern that stops $ from matching before a line break.
    pattern = schema.get("pattern", "").removesuffix(_NO_LINE_BREAK)
    word, kinds = pattern.strip("^$"), schema.get("type")
    is_word = name in ("type", "pattern") and word.replace(" ", "").isalpha()
    if is_word and isinstance(kinds, list):
        return " or ".join(word if kind == "string" else kind for kind in kinds)
    if name == "type":
        return " or ".join([rule] if isinstance(rule, str) else rule)
    if name in _LIMITS:
        keys = ", ".join(schema.get("properties", ()))
        return f"{_LIMITS[name]} {rule}" + (keys and f" of the keys {keys}")
    return f"text like {pattern}"


_KINDS = {
    "bool": "boolean",
    "NoneType": "null",
    "str": "string",
    "int": "integer",
    "float": "number",
    "dict": "object",
}


def _kind(value: object) -> str:
    name = type(value).__name__
    return _KINDS.get(name, name)


# --- similar names --------------------------------------------------------------------

# What people call a thing -> its name here.
_MEANT = {
    **dict.fromkeys(("on", "yes"), "true"),
    **dict.fromkeys(("off", "no"), "false"),
    "gpu": "cuda",
    "dpp": "ddp",
    "lr": "learning_rate",
    "wd": "weight_decay",
    "epoch": "epochs",
    "step": "steps",
    "repeats": "launches",
    "runs": "launches",
    "dataset": "data",
    "network": "model",
    "optim": "optimizer",
    "workers": "num_workers",
    "batch": "batch_size",
    "amp": "precision",
    "clip": "clip_gradients",
    "grad_clip": "clip_gradients",
    "activation_checkpointing": "checkpointing",
    "strategies": "strategy",
    **dict.fromkeys(("half", "float16"), "fp16"),
    **dict.fromkeys(("float", "float32", "single"), "fp32"),
    "bfloat16": "bf16",
    "float8": "fp8",
    **dict.fromkeys(("dataparallel", "data_parallel"), "dp"),
    **dict.fromkeys(("distributeddataparallel", "distributed"), "ddp"),
    **dict.fromkeys(("zero", "zero2", "zero3", "fsdp2"), "fsdp"),
    **dict.fromkeys(("pp", "pipeline_parallel", "gpipe"), "pipeline"),
    **dict.fromkeys(("tensor_parallel", "context_parallel", "tp", "cp", "ep"), "mesh"),
    "hvd": "horovod",
    **dict.fromkeys(("ib", "infiniband"), "nccl"),
    "openmpi": "mpi",
    "cifar": "cifar10",
}


def did_you_mean(word: object, names: Iterable[str]) -> str:
    """`; did you mean 'ddp'?`, or an empty string if no name is similar."""
    sought, known = str(word).lower(), [str(name) for name in names]
    if word in known:
        return ""
    if (meant := _MEANT.get(sought)) in known:
        return f"; did you mean {meant!r}?"
    near = difflib.get_close_matches(sought, known, n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""
