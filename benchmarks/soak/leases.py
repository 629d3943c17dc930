"""Find the leases that ran out although nothing was done to their workers.

Leases are short in a soak. One runs out while its worker gets no processor, or while a writer keeps
its job locked for too long and then rolls back. The reaper notes each in the history.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from benchmarks.soak.processes import Blow
from pgembed_django.models import Attempt


def ran_out(names: Mapping[str, str], blows: Sequence[Blow]) -> list[Blow]:
    """Return each as a blow, from the claim until the reaper took the job back.

    ``names``: the workers' names, by process id.
    """
    began = time.time() - time.monotonic()
    crashed = Attempt.objects.filter(outcome=Attempt.Outcome.CRASHED)
    leases = [
        Blow(
            names.get(worker.rpartition(":")[2], worker),
            "lease",
            started_at.timestamp() - began,
            ended_at.timestamp() - began,
        )
        for started_at, ended_at, worker in crashed.values_list("started_at", "ended_at", "worker")
    ]
    return [
        lease
        for lease in leases
        if not any(
            blow.worker == lease.worker and lease.since < blow.until and blow.since < lease.until
            for blow in blows
        )
    ]
