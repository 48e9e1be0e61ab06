"""What topologies that were not measured would give, and how far off that may be."""
