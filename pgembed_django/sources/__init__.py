"""Read source rows: the committed text of claimed units, and never a lock on them."""

from pgembed_django.sources.asking import Reading, TooMuch
from pgembed_django.sources.loading import Loaded, digests, load, read

__all__ = ["Loaded", "Reading", "TooMuch", "digests", "load", "read"]
