"""Every error in a file names the file, the key and the expected value."""

from __future__ import annotations

import dataclasses

import pytest

from factories import read_pairs
from rankbench.cell import Cell
from rankbench.schema import (
    check,
    compile_schema,
    keys_of,
    load_schema,
    load_yaml,
    parse_yaml,
    with_defaults,
)

pytestmark = pytest.mark.unit

SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "kind"],
    "properties": {
        "name": {"type": "string"},
        "kind": {"enum": ["slow", "fast", None]},
        "count": {"type": "integer", "minimum": 1, "description": "how many"},
        "rate": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        "list": {"type": "array", "minItems": 1, "uniqueItems": True, "default": [0.0]},
        "size": {"type": ["string", "integer"], "pattern": "^auto$", "default": "auto"},
    },
}
GOOD = {"name": "x", "kind": "slow"}


# --- reading YAML -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"a: [1", "is not YAML: "),
        (b"a: 1\n b: 2", "is not YAML: "),
        (b"a: 1\nb: 2\na: 3", r":3: .*duplicate key \"a\""),
        (b"x: {a: 1, a: 2}", 'duplicate key "a"'),
        (b"a: {{ name }}", "is not YAML: .*unhashable key"),
        (b"a: !!python/object:os.system {}", "is not YAML: "),
        (b"- a\n- b", "expected keys with values at the top level, got list"),
        (b"just words", "expected keys with values at the top level, got string"),
        (b"", "expected keys with values at the top level, got null"),
        (b"\x7fELF\x02\x01\xff\xfe\x00", "cannot be read: .*codec can't decode"),
        (b"a: \x00", "is not YAML: "),
        (b"a: 1\nb: .nan", ":2: is not YAML: expected a number, got .nan"),
        (b"[" * 5000, "is not YAML: "),
    ],
)
def test_not_a_mapping(tmp_path, data, complaint):
    path = tmp_path / "file.yaml"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=rf"^{path}.*{complaint}"):
        load_yaml(path)


def test_missing_file_and_folder(tmp_path):
    for path in (tmp_path / "missing.yaml", tmp_path):
        with pytest.raises(ValueError, match=rf"^{path}: cannot be read: "):
            load_yaml(path)


def test_values_are_what_they_look_like(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(
        "a: '064'\nb: 1_000\nc: 0x1f\nd: 064\ne: -010\nf: 1e-3\ng: 1:30\nh: on\n"
        "i: no\nj: 2026-11-27\nk: true\nl: ~\n"
    )
    assert list(load_yaml(path).values()) == [
        *("064", 1000, 31, 64, -10, 1e-3, "1:30", "on", "no", "2026-11-27", True, None)
    ]


def test_merged_keys_are_defaults(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("blocks: [&a {b: 32, c: gloo}, {<<: *a, b: 16}]\n07: x\n")
    expected = {"blocks": [{"b": 32, "c": "gloo"}, {"b": 16, "c": "gloo"}], "07": "x"}
    assert load_yaml(path) == expected


# --- checking -----------------------------------------------------------------------


@pytest.mark.parametrize(("text", "complaint"), read_pairs("refused_values.txt"))
def test_check(text, complaint):
    with pytest.raises(ValueError, match=f"^f.yaml: .*{complaint}"):
        check({**GOOD, **parse_yaml(text, "test")}, SCHEMA, source="f.yaml")


def test_all_mistakes_are_told_at_once_and_each_once():
    with pytest.raises(ValueError, match="missing") as caught:
        check({"count": 0, "zzz": 1}, SCHEMA, source="f.yaml")
    lines = str(caught.value).splitlines()
    assert len(lines) == 4
    assert all(line.startswith("f.yaml: ") for line in lines)
    for part in ("'name' is missing", "'kind' is missing", "'zzz'", "count: "):
        assert sum(part in line for line in lines) == 1


def test_defaults_keep_the_order_of_the_schema_and_are_copies():
    filled = with_defaults({"kind": "fast", "name": "x"}, SCHEMA)
    assert list(filled) == list(SCHEMA["properties"])
    assert filled["size"] == "auto"
    filled["list"].append(1)
    assert with_defaults(GOOD, SCHEMA)["list"] == [0.0]


def test_another_spelling_of_the_default_is_the_default():
    spelled = with_defaults({**GOOD, "list": [0, 5]}, SCHEMA)["list"]
    assert [repr(value) for value in spelled] == ["0.0", "5"]


# --- the schemas themselves ---------------------------------------------------------


@pytest.mark.parametrize("name", ["experiment", "site"])
def test_schema_is_one_and_describes_itself(name):
    schema = load_schema(name)
    compile_schema(schema, all_errors=True)
    for key, rule in schema["properties"].items():
        assert rule["description"], key


@pytest.mark.parametrize("name", ["experiment", "site"])
def test_defaults_obey_their_own_rules(name):
    schema = load_schema(name)
    properties = schema["properties"]
    defaults = {
        k: rule["default"] for k, rule in properties.items() if "default" in rule
    }
    check(defaults, {**schema, "required": []}, source=name)
    # All keys are optional except those that say what is measured.
    assert properties.keys() - defaults.keys() == set(schema.get("required", []))


def test_sweep_keys_are_the_fields_of_a_cell():
    schema = load_schema("experiment")
    fields = {field.name for field in dataclasses.fields(Cell)}
    # Options and files of the user's own belong to the names in an experiment.
    fields -= {"options", "model_options", "own_files", "own_strategy"}
    # `hosts: each` is every host of the site.
    assert "hosts" in schema["properties"]
    fields -= {"hosts"}
    assert {*keys_of(schema), *keys_of(schema, "protocol")} == fields
