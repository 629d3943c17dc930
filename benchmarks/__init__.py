"""Benchmarks of the app: ``python -m benchmarks NAME``."""
