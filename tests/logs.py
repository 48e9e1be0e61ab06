"""Real logs by name, such as `SRUN_KILLED`: see tests/real_logs/README.md."""

from __future__ import annotations

from pathlib import Path

# Rank 0 found its port in use.
PORT_TAKEN = (
    "The server socket has failed to listen on any local network address. port: 35403, "
    "useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
)


def __getattr__(name: str) -> str:
    path = Path(__file__).with_name("real_logs") / f"{name.lower()}.txt"
    if not path.exists():
        raise AttributeError(name)
    return path.read_text()
