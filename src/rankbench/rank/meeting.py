"""Runs the command of a launcher that gives torch's ranks no place to meet.

`env://` gets an address and a free port; `{port}` in the command becomes that port.
"""

from __future__ import annotations

import os
import sys

from rankbench.rank.manual import LOOPBACK, find_free_port


def main() -> None:
    port = str(find_free_port())
    argv = [word.replace("{port}", port) for word in sys.argv[1:]]
    meeting = {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": port}
    print("rendezvous:", *(f"{k}={v}" for k, v in meeting.items()), flush=True)
    os.execvpe(argv[0], argv, {**os.environ, **meeting})  # noqa: S606


if __name__ == "__main__":
    main()
