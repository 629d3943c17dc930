"""What keeps the queue and the spaces in order, on every worker, without a leader."""

from pgembed_django.maintenance.chores import Chore, Chores
from pgembed_django.maintenance.maintenance import Maintenance

__all__ = ["Chore", "Chores", "Maintenance"]
