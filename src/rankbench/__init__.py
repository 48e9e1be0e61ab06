"""rankbench: how should I train on this machine, and can I trust the number?"""

__version__ = "0.1.0"
