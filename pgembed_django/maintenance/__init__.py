"""The chores that keep the queue and the spaces in order. All workers do them, without a leader."""

from pgembed_django.maintenance.chores import Chore, Chores
from pgembed_django.maintenance.maintenance import Maintenance

__all__ = ["Chore", "Chores", "Maintenance"]
