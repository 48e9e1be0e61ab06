"""What a rank tells its supervisor: progress, failure, and a sign of life."""
