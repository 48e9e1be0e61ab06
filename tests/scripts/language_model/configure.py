"""Replaces global variables of the script that executes this file: --name=value."""

import sys

for argument in sys.argv[1:]:
    name, _, value = argument.removeprefix("--").partition("=")
    assert name in globals(), f"unknown setting: {name}"
    globals()[name] = type(globals()[name])(value)
