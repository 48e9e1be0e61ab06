"""Reports progress and failure to the supervisor, and watches its heartbeat."""
