"""What keeps rows and spaces in order. All workers do it, without a leader."""
