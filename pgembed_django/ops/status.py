"""Read the status of specs, workers and providers, for the admin, the commands and metrics.

Every function is cheap enough for a page that refreshes itself, however large the tables are:
counts stop at a bound and say so, and large tables are sampled.
"""

from pgembed_django.ops.charts import Point, series
from pgembed_django.ops.failures import failure_batches, failure_kinds
from pgembed_django.ops.overview import overview
from pgembed_django.ops.shapes import (
    STATES,
    Backlog,
    Count,
    FailureKind,
    FailureKinds,
    HeldJobs,
    Overview,
    ProviderStatus,
    SpaceStatus,
    SpecStatus,
    Verdict,
    WorkerStatus,
)
from pgembed_django.spaces import Coverage

__all__ = [
    "STATES",
    "Backlog",
    "Count",
    "Coverage",
    "FailureKind",
    "FailureKinds",
    "HeldJobs",
    "Overview",
    "Point",
    "ProviderStatus",
    "SpaceStatus",
    "SpecStatus",
    "Verdict",
    "WorkerStatus",
    "failure_batches",
    "failure_kinds",
    "overview",
    "series",
]
