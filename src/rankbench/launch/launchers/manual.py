"""Ranks as one starts them by hand: a command each, with its place as arguments."""

from __future__ import annotations

from rankbench.launch.launchers import _parent
from rankbench.launch_spec import LaunchSpec

NEEDS = {"init_methods": ["env", "tcp", "file"]}

read_exits = _parent.read_exits


def build_argv(spec: LaunchSpec) -> list[str]:
    return _parent.build_argv("manual", spec, f"--init-method={spec.cell.init_method}")
