"""Names of hosts: an unknown one is an error at once, not a wait for the time limit."""

from __future__ import annotations

import socket


def check_name(host: str) -> None:
    """Raise if this host does not know another one; torch would ask again and again.

    Raises:
        OSError: it does not; names both.
    """
    try:
        socket.getaddrinfo(host, None)
    except socket.gaierror as error:
        raise OSError(
            f"the host {socket.gethostname()} cannot resolve {host}: {error.strerror} "
            "(ranks find each other by these names: /etc/hosts or a name server)"
        ) from None
