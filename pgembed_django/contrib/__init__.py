"""What depends on other packages, and what nothing else here depends on."""
