"""The commands of `rankbench`: a file for each, and this table."""

# Command -> its group, and a line about it; in the order of `rankbench --help`, which
# imports no command, because imports take time.
COMMANDS = {
    "init": ("set up", "write a new project folder, or site.yaml of a cluster"),
    "check": ("set up", "check an experiment, a file of your own, or a site"),
    "images": ("set up", "build, pull or show images"),
    "run": ("measure", "measure an experiment, and print its answer and table"),
    "rerun": ("measure", "measure cells again, and write the table"),
    "status": ("measure", "show the state of every cell, or everything about one"),
    "answer": ("read", "say what is best, what it costs, and what is untested"),
    "table": ("read", "write tables and plots from plan and records"),
    "compare": ("compare", "compare two or more runs: better, worse or equal?"),
    "publish": ("share", "write a bundle, and a web page that needs no server"),
    "verify": ("share", "check the files of a bundle, and derive its tables again"),
    "replay": ("share", "measure the cells of a bundle here, and compare"),
}

# What other words for a command or an option mean.
MEANT = {
    "cells": "run -n",
    "prepare": "run --prepare",
    "show": "status CELL",
    "site-check": "check --site",
    "accept": "compare --at-least",
    "history": "compare --by date",
    "diff-models": "compare --models",
    "predict": "answer --at",
    "--experiment": "run FILE",
    "--profile": "--site",
}
