"""The hostfile of each launcher."""

from __future__ import annotations

import pytest

from rankbench.launch.launchers._hostfiles import host_list, hostfile

pytestmark = pytest.mark.unit

SLOTS = {"node1": 4, "node2.cluster": 2}


def test_a_file_has_a_line_for_each_host() -> None:
    assert hostfile(SLOTS) == "node1 slots=4\nnode2.cluster slots=2\n"


def test_a_list_is_one_word() -> None:
    assert host_list(SLOTS) == "node1:4,node2.cluster:2"
    assert host_list({"localhost": 1}) == "localhost:1"
