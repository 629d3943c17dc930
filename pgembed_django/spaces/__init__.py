"""The life of spaces: ``building`` -> ``active`` -> ``retired``. Only a person reopens one."""

from pgembed_django.spaces.coverage import (
    FOUND,
    Coverage,
    LookedUp,
    coverage_of,
    covering_chunk,
    has_gap,
    jobs_of_row,
    last_gap,
)
from pgembed_django.spaces.living import (
    active,
    ask_for_weights,
    ask_live_ids,
    live,
    live_of,
    provider_of,
    provider_of_texts,
    warm_up,
)
from pgembed_django.spaces.opening import adopt, ensure
from pgembed_django.spaces.switching import (
    activate,
    cancel,
    forget,
    mark_pruned,
    note_full,
    prunable,
    renewed,
    reopen,
    turn,
)

__all__ = [
    "FOUND",
    "Coverage",
    "LookedUp",
    "activate",
    "active",
    "adopt",
    "ask_for_weights",
    "ask_live_ids",
    "cancel",
    "coverage_of",
    "covering_chunk",
    "ensure",
    "forget",
    "has_gap",
    "jobs_of_row",
    "last_gap",
    "live",
    "live_of",
    "mark_pruned",
    "note_full",
    "provider_of",
    "provider_of_texts",
    "prunable",
    "renewed",
    "reopen",
    "turn",
    "warm_up",
]
