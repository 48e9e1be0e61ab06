"""Operations of the Snakefile and the commands on an experiment on disk.

Only this package, `commands` and `cli` know more than one room.
"""
