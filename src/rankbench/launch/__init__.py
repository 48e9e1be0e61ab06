"""Start and supervise the processes of a cell on a site, and write its records."""
