"""What operators see and do: the status of everything, and what the commands share."""
