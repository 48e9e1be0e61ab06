"""What integration tests share: one browser for all tests of pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from browser import Browser, find_programs, start_browser


@pytest.fixture(scope="session")
def browser(ordinary_user: list[str], open_tmp: Path) -> Iterator[Browser]:
    programs = find_programs()
    if programs is None:
        pytest.skip(
            "no Chromium with its driver: bash tests/machine/install_chromium.sh"
        )
    with start_browser(*programs, user=ordinary_user, folder=open_tmp) as found:
        yield found
