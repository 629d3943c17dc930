"""The chat page: works with forms and links alone; a script only spares the reload."""

from __future__ import annotations

from uuid import UUID, uuid4

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from memory import assistant, conversation, recall
from memory.language_model import LanguageModelError

LONGEST_MESSAGE = 1000

PEOPLE = {"ada": "Ada", "grace": "Grace"}
"""The tenants. What one of them says is never recalled for the other."""

EXAMPLES = (
    "I live in Berlin. My daughter is called Maya.",
    "I really like green tea.",
    "What is my daughter called?",
)


@require_http_methods(["GET", "HEAD", "POST"])
def chat_page(request: HttpRequest, tenant: str) -> HttpResponse:
    """Show a conversation. A message that gets no answer stays in its field, with the reason."""
    if tenant not in PEOPLE:
        raise Http404(f"There is nobody called {tenant!r} here.")
    message, problem, status, request_id = "", "", 200, uuid4()
    if request.method == "POST":
        message = request.POST.get("message", "").replace("\0", " ").strip()
        request_id = _request_id(request.POST.get("request_id", ""))
        if len(message) > LONGEST_MESSAGE:
            problem = f"This has {len(message):,} characters. {LONGEST_MESSAGE:,} are allowed."
            status = 400
        elif message:
            try:
                conversation.say(tenant, request_id, message)
            except LanguageModelError as error:
                problem = f"There is no answer just now: {error}"
                status = 503
        if not problem:
            return redirect(f"{reverse('memory:chat', args=[tenant])}#say")
    shown = conversation.latest(tenant)
    context = {
        "assistant": assistant.current(),
        "examples": EXAMPLES,
        "exchanges": [(exchange, conversation.progress(exchange)) for exchange in shown],
        "longest": LONGEST_MESSAGE,
        "memories": recall.current(tenant).order_by("-pk").prefetch_related("superseded"),
        "message": message,
        "people": [(key, name, key == tenant) for key, name in PEOPLE.items()],
        "person": PEOPLE[tenant],
        "problem": problem,
        "request_id": request_id,
    }
    return render(request, "memory/chat.html", context, status=status)


def _request_id(given: str) -> UUID:
    """Return the id that the page was sent with, or a new one if it was tampered with."""
    try:
        return UUID(given)
    except ValueError:
        return uuid4()
