"""One cell's job: its attempts, claims and launches, and who measures when."""
