"""One launch: its environment, its command, and its supervision."""
