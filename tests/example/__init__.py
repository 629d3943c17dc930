"""Tests in the settings of the example project: ``pytest --ds tests.example.settings``."""
