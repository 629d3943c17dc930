"""The job list: what failed and why, and what can be done. Jobs themselves are read-only."""

from __future__ import annotations

from collections import Counter
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from pgembed_django.admin import acts, bulk, buttons, columns, failures, filters, reading
from pgembed_django.models import Job


class JobList(reading.ReadOnlyList):
    """A page of jobs, with what is looked up for all of them at once."""

    def get_results(self, request: HttpRequest) -> None:
        """Read the page."""
        super().get_results(request)
        self.result_list: Any = list(self.result_list)
        columns.attach(self.result_list)


class JobAdmin(columns.JobColumns):
    """Lists jobs, newest first; failures by the time of failing."""

    actions = ("retry", "dismiss", "reembed", "release")
    list_filter = (
        filters.StatusFilter,
        filters.SpecFilter,
        filters.SignatureFilter,
        filters.WorkerFilter,
    )
    search_fields = ("source_pk",)
    search_help_text = gettext_lazy("A row's key, a spec, or both: blog.ArticleEmbedding 17")

    class Media:
        css = {"all": ["pgembed/admin.css"]}

    def get_urls(self) -> list[URLPattern]:
        """Return the pages of a list and of one job, and those that are our own."""
        own = {
            "failures/": ("failures", failures.view),
            "all/<slug:act>/": ("all", bulk.view),
            "operate/<slug:verb>/": ("operate", buttons.view),
        }
        return [
            path(route, self._wrapped(view), name=f"pgembed_job_{name}")
            for route, (name, view) in own.items()
        ] + super().get_urls()

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """Return the list with its look-ups."""
        return JobList

    def get_list_display(self, request: HttpRequest) -> Any:
        """Return the columns. The link to the source row depends on who is looking."""
        if request.GET.get("status") == "failed":
            # What tells failures of one kind apart comes first.
            return (
                "unit",
                self.source_row(request),
                "size",
                "attempts",
                "crashes",
                "worker",
                "state",
                "error",
                "finished",
            )
        return (
            "unit",
            "state",
            "error",
            self.source_row(request),
            "size",
            "kind",
            "attempts",
            "crashes",
            "worker",
            "created",
            "finished",
        )

    def get_fieldsets(self, request: HttpRequest, obj: Job | None = None) -> Any:
        """Return what the page of one job shows: first what an operator asks."""
        return (
            (
                None,
                {"fields": (("state", self.source_row(request), "size", "kind"), "full_error")},
            ),
            (_("History"), {"fields": ("history",)}),
            (
                _("Tries"),
                {"fields": (("attempts", "crashes", "outages", "claims"), ("parkings", "chunks"))},
            ),
            (
                _("Times"),
                {
                    "fields": (
                        ("created_at", "started_at", "finished_at"),
                        ("settled_at", "run_at"),
                    )
                },
            ),
            (_("Queue"), {"fields": (("priority", "worker", "lease_expires_at"),)}),
            (_("Text"), {"fields": (self.source_text(request),)}),
        )

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        """Return the order that an index gives for the chosen status."""
        shown = filters.STATUSES.get(request.GET.get(filters.StatusFilter.parameter_name, ""))
        return shown.ordering if shown else ("-id",)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Job], search_term: str
    ) -> tuple[QuerySet[Job], bool]:
        """Find a unit as it is written, not a part of it."""
        return queryset.filter(filters.unit(search_term)), False

    def has_retry_permission(self, request: HttpRequest) -> bool:
        """Tell whether the viewer may start failed units afresh."""
        return acts.ACTS["retry"].is_allowed(request)

    def has_dismiss_permission(self, request: HttpRequest) -> bool:
        """Tell whether the viewer may put failures aside without retrying them."""
        return acts.ACTS["dismiss"].is_allowed(request)

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Tell whether the viewer may re-embed, pause, resume, release and probe."""
        return acts.ACTS["release"].is_allowed(request)

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Show the buttons to those who may use them, where there is something to do."""
        job: Job = context["original"]
        # The same conditions as in the list: the database decides.
        found = Job.objects.using(acts.using()).filter(pk=job.pk)
        context["acts"] = [
            (name, act.title)
            for name, act in acts.ACTS.items()
            if act.is_allowed(request) and found.filter(act.condition).exists()
        ]
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.action(permissions=["retry"], description=gettext_lazy("Retry selected"))
    def retry(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        """Start the selected failed units afresh, and bring those that wait forward."""
        return self._act("retry", request, queryset)

    @admin.action(permissions=["dismiss"], description=gettext_lazy("Dismiss selected failures"))
    def dismiss(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        """Put the selected failures aside without retrying them."""
        return self._act("dismiss", request, queryset)

    @admin.action(permissions=["operate"], description=gettext_lazy("Re-embed selected units"))
    def reembed(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        """Embed the selected units anew, though their text is the same."""
        return self._act("reembed", request, queryset)

    @admin.action(permissions=["operate"], description=gettext_lazy("Release from a dead worker"))
    def release(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        """Take the selected running jobs from their workers."""
        return self._act("release", request, queryset)

    def _act(self, name: str, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        if request.POST.get("select_across") == "1":
            return self._ask_about_all(name, request)
        act = acts.ACTS[name]
        found = {job.pk: job for job in queryset}
        concerned = list(queryset.filter(act.condition).values_list("pk", flat=True))
        selected = set(request.POST.getlist(ACTION_CHECKBOX_NAME))
        counts = Counter(act.run(concerned))
        # Jobs that the filter no longer shows are gone.
        counts.update(gone=len(selected) - len(found), others=len(found) - len(concerned))
        said = acts.told(name, counts)
        acts.log(request, said, about=[found[pk] for pk in concerned])
        level = messages.SUCCESS if acts.is_done(counts) else messages.WARNING
        self.message_user(request, said, level)
        return None

    def _ask_about_all(self, name: str, request: HttpRequest) -> HttpResponse | None:
        if others := filters.others(request.GET):
            # The page that asks would be about more than is listed.
            said = _("Nothing was done: all that match cannot be told by %s. Select jobs.")
            self.message_user(request, said % ", ".join(others), messages.ERROR)
            return None
        return HttpResponseRedirect(bulk.url(self, name, request.GET.dict()))

    def _wrapped(self, view: Any) -> Any:
        def wrapped(request: HttpRequest, **kwargs: Any) -> HttpResponse:
            if reading.has_nul(request.GET) or reading.has_nul(request.POST):
                raise Http404
            response: HttpResponse = view(self, request, **kwargs)
            return response

        return self.admin_site.admin_view(wrapped)
