"""rankbench: how should I train on this machine, over which backend, on how many devices?"""

__version__ = "0.1.0"
