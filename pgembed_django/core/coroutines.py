"""Use a context manager in a coroutine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager

from asgiref.sync import sync_to_async


@asynccontextmanager
async def entered(block: AbstractContextManager[object]) -> AsyncIterator[None]:
    """Enter and leave it in the one thread that also runs the async ORM's statements."""
    await sync_to_async(block.__enter__)()
    try:
        yield
    except BaseException as error:
        if not await sync_to_async(block.__exit__)(type(error), error, error.__traceback__):
            raise
    else:
        await sync_to_async(block.__exit__)(None, None, None)
