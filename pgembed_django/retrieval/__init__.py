"""Find rows by words and by meaning, within any queryset, in the active space only.

Start reading at ``searching.search``: it calls the other modules in turn.
"""

from pgembed_django.retrieval.results import Hit, Match, Ranking, Results
from pgembed_django.retrieval.searching import (
    SearchManager,
    SearchQuerySet,
    asearch,
    asimilar_to,
    search,
    similar_to,
    warm_up,
)

__all__ = [
    "Hit",
    "Match",
    "Ranking",
    "Results",
    "SearchManager",
    "SearchQuerySet",
    "asearch",
    "asimilar_to",
    "search",
    "similar_to",
    "warm_up",
]
