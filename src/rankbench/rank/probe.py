"""Print as JSON what planning must know of this environment: run by launch/probe.py."""

from __future__ import annotations

import json

import torch

from rankbench.rank.facts import available_backends
from rankbench.rank.placement import physical_cores


def main() -> None:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    facts = {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "cuda_devices": [torch.cuda.get_device_name(i) for i in range(count)],
        "backends": available_backends(),
        "cores": len(physical_cores()),
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
