"""rankbench: how should I train on this machine, and can I trust the number?"""

__version__ = "1.0.0"
