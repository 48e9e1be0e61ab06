"""Each command declares what its help needs, and all help fits on a terminal."""

from __future__ import annotations

import shlex

import pytest

from rankbench.cli import load_commands, main, read_arguments

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


def test_places_are_numbered():
    places = [command.place for command in COMMANDS.values()]
    groups = list(dict.fromkeys(group for group, _ in places))
    expected = [
        (group, number)
        for group in groups
        for number in range(1, 1 + sum(place[0] == group for place in places))
    ]
    assert places == expected


@pytest.mark.parametrize("name", ["rerun", "show", "compare", "images"])
def test_options_stand_anywhere(name):
    words = ["a.yaml", "b"]
    option = ["--json"] if name == "compare" else ["--site", "there"]
    found = [
        vars(read_arguments([name, *words[:place], *option, *words[place:]]))
        for place in range(3)
    ]
    assert found[0] == found[1] == found[2]
