"""Where launches run: on this machine, in a Slurm job, or on hosts that ssh reaches."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from rankbench.launch.hosts.base import Hosts
from rankbench.schedulers import scheduler_of


def hosts_of(site: Mapping[str, Any]) -> type[Hosts]:
    """Return the class of a site's hosts; its `open` gives them to a job."""
    module, _, name = scheduler_of(site).hosts.partition(":")
    found: type[Hosts] = getattr(import_module(f"{__name__}.{module}"), name)
    return found
