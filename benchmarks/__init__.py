"""What the app is for, measured: ``python -m benchmarks NAME``."""
