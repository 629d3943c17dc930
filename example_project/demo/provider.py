"""Check that the texts can be embedded, before anything is loaded."""

from __future__ import annotations

from demo.exceptions import DemoFailed
from pgembed_django import providers


def require() -> None:
    """Check that the provider embeds a word.

    Raises:
        DemoFailed: it does not.
    """
    found = providers.get()
    probe = found.probe()
    if not probe.ok:
        raise DemoFailed(
            f"The provider of {found.model} is not well: {probe.message} Mend that, or unset "
            "PGEMBED_PROVIDER to embed in this process."
        )
