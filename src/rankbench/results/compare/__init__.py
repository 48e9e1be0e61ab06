"""Two or more sides, cell by cell: what became better, worse, or stayed equal."""
