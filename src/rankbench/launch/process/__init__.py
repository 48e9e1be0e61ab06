"""One launch: its command, its supervision, its classification and its record."""
