"""What ``@embeddable`` declares: specs, their conditions, and the SQL that triggers call."""
