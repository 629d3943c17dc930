"""Benchmarks of the quality and the speed of searches."""
