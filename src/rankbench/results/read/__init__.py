"""Plans, records and bundles, read and checked."""
