"""Read source rows: the committed texts of claimed units, without ever locking the rows."""

from pgembed_django.sources.asking import Reading, TooMuch
from pgembed_django.sources.loading import Loaded, digests, load, read

__all__ = ["Loaded", "Reading", "TooMuch", "digests", "load", "read"]
