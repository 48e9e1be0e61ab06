"""Commands declare what their help needs, and print nothing that a terminal obeys."""

from __future__ import annotations

import ast
import json
import shlex
from pathlib import Path

import pytest

import rankbench
from rankbench.cli import load_commands, main, read_arguments
from unit.synthetic import make_cell, plan_cell, write_launches, write_plan

pytestmark = pytest.mark.contract

COMMANDS = {command.name: command for command in load_commands()}


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_fits_on_a_screen(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"] if name else ["--help"])
    assert ended.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if "None" in line]


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_can_be_typed(name):
    command = COMMANDS[name]
    for example in command.examples:
        words = shlex.split(example)
        assert words[0] == name
        assert read_arguments(words).command is command.run
    assert read_arguments([*words, "--json"]).json or "--" in words
    assert command.exits.startswith("0")


@pytest.mark.parametrize("name", ["rerun", "status", "compare", "images"])
def test_options_stand_anywhere(name):
    words = ["a.yaml", "b"]
    option = ["--json"] if name == "compare" else ["--site", "there"]
    found = [
        vars(read_arguments([name, *words[:place], *option, *words[place:]]))
        for place in range(3)
    ]
    assert found[0] == found[1] == found[2]


# It sets the title of a terminal, clears it, and turns the direction of text.
EVIL = "\x1b]0;owned\x07\x1b[2J\r\u202e\x9b31m"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> Path:
    """A folder whose results, experiment, script and archive quote such text."""
    root = tmp_path_factory.mktemp("hostile")
    planned = [plan_cell(make_cell("single")), plan_cell(make_cell("ddp", "1x2"))]
    layout = write_plan(root / "results", planned)
    for cell in planned:
        write_launches(layout, cell, rate=800, host=f"node{EVIL}")
    for path in (root / "results/records").rglob("record.json"):
        record = json.loads(path.read_text())
        changes = {"status": "crashed", "reason": f"it said {EVIL}"}
        if record["launch"] == 1:
            path.write_text(json.dumps(record | changes))
    (root / "x.yaml").write_text(f'name: "a{EVIL.encode("unicode_escape").decode()}"')
    (root / "x.py").write_text(f"# {EVIL}\nimport {EVIL}\n")
    (root / "x.tar.zst").write_text(EVIL)
    (root / "local_profile").mkdir()
    (root / "local_profile/site.yaml").write_text(f"# {EVIL}\n")
    return root


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(
    "words",
    [
        [EVIL],
        [f"--{EVIL}"],
        ["--site", EVIL],
        ["results"],
        ["results", EVIL],
        ["results", "results", "--json"],
        ["x.yaml"],
        ["x.py", EVIL],
        ["x.tar.zst", "x.tar.zst"],
    ],
    ids=ascii,
)
def test_a_terminal_obeys_nothing_that_is_quoted(
    name, words, hostile, capsys, monkeypatch
):
    monkeypatch.chdir(hostile)
    if name == "init" and words in (["results"], [EVIL]):
        words = ["results", EVIL]  # it would write a project
    main([name, *words])
    said = "".join(capsys.readouterr())
    assert said
    odd = {char for char in said if not (char.isprintable() or char in "\n\t")}
    assert not odd


def test_commands_print_by_one_function():
    package = Path(rankbench.__file__).parent
    files = [package / "cli.py"]
    files += [f for room in ("commands", "project") for f in (package / room).glob("*")]
    found = [
        f"{path.name}:{node.lineno}"
        for path in files
        if path.suffix == ".py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "print"
    ]
    assert found == []
