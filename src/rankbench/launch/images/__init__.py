"""Container images: from a definition to a verified file with its provenance."""
