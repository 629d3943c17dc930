"""The overview's buttons: pause, resume, probe a provider, release a worker's jobs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from django.contrib import messages
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseNotAllowed,
    HttpResponseRedirect,
)
from django.urls import reverse
from django.utils.translation import gettext as _

from pgembed_django import conf, providers, specs
from pgembed_django.admin import actions, filters
from pgembed_django.exceptions import ProviderError
from pgembed_django.models import Job, Pause
from pgembed_django.providers import Probe
from pgembed_django.queue import jobs
from pgembed_django.threads import Threads

if TYPE_CHECKING:
    from pgembed_django.admin.jobs import JobAdmin

PROBE_SECONDS = 5.0
"""How long a page waits for a probe: the provider's own time-out may be minutes."""

MAX_RELEASED = 1000

Said = tuple[int, str]


def view(model_admin: JobAdmin, request: HttpRequest, verb: str) -> HttpResponse:
    """Do one of ``VERBS``, show a message with the result, and redirect to the overview."""
    if verb not in VERBS:
        raise Http404
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    if not (
        model_admin.has_view_permission(request) and model_admin.has_operate_permission(request)
    ):
        raise PermissionDenied
    name = request.POST.get("name", "")
    level, said = VERBS[verb](request, name)
    actions.log(request, said, about=name)
    model_admin.message_user(request, said, level)
    return HttpResponseRedirect(
        reverse(f"{model_admin.admin_site.name}:app_list", args=["pgembed"])
    )


def _pause(request: HttpRequest, name: str) -> Said:
    is_new = jobs.pause(_what(request, name), name, by=str(request.user), using=actions.using())
    if is_new:
        return messages.SUCCESS, _("Paused %s. Workers notice within ten seconds.") % name
    return messages.WARNING, _("Already paused: %s.") % name


def _resume(request: HttpRequest, name: str) -> Said:
    # Also for specs and providers that are no longer declared: their pauses can be removed.
    what = request.POST.get("what", "")
    if what not in Pause.What.values:
        raise Http404
    if jobs.resume(what, name, using=actions.using()):
        return messages.SUCCESS, _("Resumed %s. Workers notice within ten seconds.") % name
    return messages.WARNING, _("Not paused: %s.") % name


def _probe(request: HttpRequest, name: str) -> Said:
    if name not in conf.current().declared:
        raise Http404
    try:
        provider = providers.get(name)
    except ImproperlyConfigured as error:
        return messages.ERROR, str(error)
    # Django capitalizes a message's first letter: do not begin with an alias or a model's name.
    who = _("The provider %(alias)s (%(model)s)") % {"alias": name, "model": provider.model}
    try:
        probe = within(PROBE_SECONDS, provider.probe)
    except ProviderError as error:
        return messages.ERROR, f"{who}: {error}"
    if probe is None:
        return messages.ERROR, _("%(provider)s did not answer within %(seconds)d s.") % {
            "provider": who,
            "seconds": PROBE_SECONDS,
        }
    if not probe.ok:
        return messages.ERROR, f"{who}: {probe.message} {probe.doubt}".rstrip()
    answered = _("%(provider)s answered in %(ms)d ms with %(width)d dimensions.") % {
        "provider": who,
        "ms": probe.seconds * 1000,
        "width": probe.width,
    }
    if probe.doubt:
        return messages.WARNING, f"{answered} {probe.doubt}"
    return messages.SUCCESS, answered


def _release(request: HttpRequest, name: str) -> Said:
    if not name.isdecimal():
        raise Http404
    held = Job.objects.using(actions.using()).filter(filters.held_by(name))
    ids = list(held.order_by("pk").values_list("pk", flat=True)[:MAX_RELEASED])
    counts = actions.ACTS["release"].run(ids)
    return actions.level(counts), actions.told("release", counts)


def within(seconds: float, look: Callable[[], Probe]) -> Probe | None:
    """Return the probe, or None if it takes longer. Its thread then ends by itself later.

    Raises:
        ProviderUnavailable: this process can start no thread.
    """
    threads = Threads(1, name="pgembed-probe")
    try:
        found: Future[Probe] = threads.submit(look)
        return found.result(seconds)
    except TimeoutError:
        return None
    finally:
        threads.shutdown(wait=False)


def _what(request: HttpRequest, name: str) -> str:
    what = request.POST.get("what")
    if what == Pause.What.SPEC and specs.get(name):
        return Pause.What.SPEC
    if what == Pause.What.PROVIDER and name in conf.current().declared:
        return Pause.What.PROVIDER
    raise Http404


VERBS: dict[str, Callable[[HttpRequest, str], Said]] = {
    "pause": _pause,
    "resume": _resume,
    "probe": _probe,
    "release": _release,
}
