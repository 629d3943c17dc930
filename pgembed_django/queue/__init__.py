"""The queue: jobs, their SQL, and workers that hand them to handlers.

It knows no spec, provider, space or model of a user: a spec is an opaque name to it. For a handler
of your own, see ``Handler``. ``worker.Worker`` runs it.
"""

from pgembed_django.queue.handler import Gaps, Handler, Ready, Setting

__all__ = ["Gaps", "Handler", "Ready", "Setting"]
