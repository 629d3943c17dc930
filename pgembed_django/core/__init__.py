"""What all rooms stand on: the database, errors, events, threads. Knows no job and no model."""
