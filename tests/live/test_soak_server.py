"""What the soak's embedding server notes, so that the count of repeats is right."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.soak import processes, server
from pgembed_django.exceptions import ProviderUnavailable
from pgembed_django.providers.ollama import OllamaProvider

pytestmark = pytest.mark.live


@pytest.fixture
def served() -> Iterator[processes.Server]:
    served = processes.Server(seed=1)
    yield served
    served.stop()


def test_a_canary_that_is_not_answered_is_noted_in_small_requests_too(
    served: processes.Server,
) -> None:
    provider = OllamaProvider(
        alias="default",
        model="soak",
        dimensions=server.WIDTH,
        base_url=f"http://127.0.0.1:{served.port}",
    )
    provider.size.failed(2)  # from now on, each text is a request of its own
    served.be("503")

    with pytest.raises(ProviderUnavailable):
        provider.canary.look([], seconds=0)

    _, unanswered = served.told()
    assert len(unanswered) == 1
