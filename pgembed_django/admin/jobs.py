"""The job list and the page of one job, with actions. Fields are read-only."""

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

from pgembed_django.admin import actions, bulk, columns, failure_kinds, filters, lists, views
from pgembed_django.models import Job


class JobList(lists.ReadOnlyList):
    """A page of jobs. Looks up what other tables hold about them for the whole page together."""

    def get_results(self, request: HttpRequest) -> None:
        """Read the page."""
        super().get_results(request)
        self.result_list: Any = list(self.result_list)
        columns.attach(self.result_list)


class JobAdmin(columns.JobColumns):
    """Lists jobs, newest first. Failures are ordered by when they failed."""

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
        """Return the URLs of Django's pages, and of our own."""
        own = {
            "failures/": ("failures", failure_kinds.view),
            "all/<slug:act>/": ("all", bulk.view),
            "operate/<slug:verb>/": ("operate", views.view),
        }
        return [
            path(route, self._wrapped(view), name=f"pgembed_job_{name}")
            for route, (name, view) in own.items()
        ] + super().get_urls()

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """Return the class of the list."""
        return JobList

    def get_list_display(self, request: HttpRequest) -> Any:
        """Return the columns. The link to the source row depends on the viewer."""
        # A screen has room for about five columns. Columns that are the same in each row of a
        # filtered list come last.
        rest = (self.source_row(request), "size", "attempts", "crashes", "worker")
        if request.GET.get("signature"):
            return ("unit", "finished", *rest, "state", "error")
        if request.GET.get("status") in {"failed", "dismissed"}:
            return ("unit", "error", "finished", *rest, "state")
        return ("unit", "state", "created", "finished", "error", *rest, "kind")

    def get_fieldsets(self, request: HttpRequest, obj: Job | None = None) -> Any:
        """Return the fieldsets of one job's page, with what an operator needs first."""
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
        """Return the order for which the chosen status has an index."""
        shown = filters.STATUSES.get(request.GET.get(filters.StatusFilter.parameter_name, ""))
        return shown.ordering if shown else ("-id",)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Job], search_term: str
    ) -> tuple[QuerySet[Job], bool]:
        """Find units by their exact spec and key, not by parts of them."""
        return queryset.filter(filters.unit(search_term)), False

    def has_retry_permission(self, request: HttpRequest) -> bool:
        """Return whether the viewer may retry failed units."""
        return actions.ACTS["retry"].is_allowed(request)

    def has_dismiss_permission(self, request: HttpRequest) -> bool:
        """Return whether the viewer may dismiss failures."""
        return actions.ACTS["dismiss"].is_allowed(request)

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Return whether the viewer may re-embed, pause, resume, release and probe."""
        return actions.ACTS["release"].is_allowed(request)

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Add the buttons that apply to this job and that the viewer may use."""
        job: Job = context["original"]
        # The same conditions as in the list, decided by the database.
        found = Job.objects.using(actions.using()).filter(pk=job.pk)
        context["acts"] = [
            (name, act.title)
            for name, act in actions.ACTS.items()
            if act.is_allowed(request) and found.filter(act.condition).exists()
        ]
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.action(permissions=["retry"], description=gettext_lazy("Retry selected"))
    def retry(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        """Retry the selected failed units, and make selected jobs in backoff due now."""
        return self._act("retry", request, queryset)

    @admin.action(permissions=["dismiss"], description=gettext_lazy("Dismiss selected failures"))
    def dismiss(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        """Dismiss the selected failures without retrying them."""
        return self._act("dismiss", request, queryset)

    @admin.action(permissions=["operate"], description=gettext_lazy("Re-embed selected units"))
    def reembed(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        """Embed the selected units again, even if their text is unchanged."""
        return self._act("reembed", request, queryset)

    @admin.action(permissions=["operate"], description=gettext_lazy("Release from a dead worker"))
    def release(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        """Take the selected running jobs from their workers."""
        return self._act("release", request, queryset)

    def _act(self, name: str, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        if request.POST.get("select_across") == "1":
            return self._ask_about_all(name, request)
        act = actions.ACTS[name]
        found = {job.pk: job for job in queryset}
        concerned = list(queryset.filter(act.condition).values_list("pk", flat=True))
        selected = set(request.POST.getlist(ACTION_CHECKBOX_NAME))
        counts = Counter(act.run(concerned))
        # Selected jobs that the filter no longer shows count as gone.
        counts.update(gone=len(selected) - len(found), others=len(found) - len(concerned))
        said = actions.told(name, counts)
        actions.log(request, said, about=[found[pk] for pk in concerned])
        self.message_user(request, said, actions.level(counts))
        return None

    def _ask_about_all(self, name: str, request: HttpRequest) -> HttpResponse | None:
        if others := filters.others(request.GET):
            # The confirmation page ignores these lookups, so it would act on more jobs than listed.
            said = _("Nothing was done: all that match cannot be told by %s. Select jobs.")
            self.message_user(request, said % ", ".join(others), messages.ERROR)
            return None
        return HttpResponseRedirect(bulk.url(self, name, request.GET.dict()))

    def _wrapped(self, view: Any) -> Any:
        def wrapped(request: HttpRequest, **kwargs: Any) -> HttpResponse:
            if lists.has_nul(request.GET) or lists.has_nul(request.POST):
                raise Http404
            response: HttpResponse = view(self, request, **kwargs)
            return response

        return self.admin_site.admin_view(wrapped)
