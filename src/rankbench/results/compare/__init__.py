"""Two runs, cell by cell: what became better, worse, or stayed equal."""
