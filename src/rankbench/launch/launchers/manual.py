"""Ranks as one starts them by hand: a command each, with its place as arguments."""

from __future__ import annotations

from rankbench.launch.launchers import Start, _parent

NEEDS = {"init_methods": ["env", "tcp", "file"]}

read_exits = _parent.read_exits


def build_argv(start: Start) -> list[str]:
    return _parent.build_argv("manual", start, f"--init-method={start.init_method}")
