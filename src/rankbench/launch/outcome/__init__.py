"""From exit codes, logs and reports of a launch to its typed record."""
