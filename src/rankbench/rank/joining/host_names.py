"""Checks host names, so that an unknown one fails at once and not at the time limit."""

from __future__ import annotations

import socket


def check_name(host: str) -> None:
    """Check that this host can resolve a host name; torch would retry without a word.

    Raises:
        OSError: it cannot; names both hosts.
    """
    try:
        socket.getaddrinfo(host, None)
    except socket.gaierror as error:
        raise OSError(
            f"the host {socket.gethostname()} cannot resolve {host}: {error.strerror} "
            "(ranks find each other by these names: /etc/hosts or a name server)"
        ) from None
