"""Prepare the database: check that it is reachable and has pgvector, migrate, add a login."""

from __future__ import annotations

from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import DatabaseError, OperationalError, connection
from psycopg import errors

from demo.exceptions import DemoFailed

USERNAME = "admin"
PASSWORD = "demo"

VECTOR = """
    SELECT current_setting('server_version'), default_version
    FROM pg_available_extensions
    WHERE name = 'vector'
"""


def require() -> str:
    """Check the server, and return a phrase that describes it.

    Raises:
        DemoFailed: the server cannot be reached, or has no pgvector.
    """
    if connection.vendor != "postgresql":
        raise DemoFailed(
            f"DATABASE_URL names a {connection.display_name} database. It has to be Postgres."
        )
    settings = connection.settings_dict
    where = settings["HOST"] or settings["OPTIONS"].get("host") or "the default host"
    try:
        with connection.cursor() as cursor:
            cursor.execute(VECTOR)
            found = cursor.fetchone()
    except OperationalError as error:
        raise DemoFailed(
            f"The database at {where} cannot be reached: {_reason(error)}. "
            "Mend DATABASE_URL, or unset it to use the embedded Postgres."
        ) from error
    if found is None:
        raise DemoFailed(
            f"The server at {where} has no extension 'vector'. Install "
            "pgvector there, or unset DATABASE_URL to use the embedded Postgres."
        )
    version = found[0].split()[0]
    return f"PostgreSQL {version} with pgvector {found[1]} at {where}"


def prepare() -> None:
    """Migrate, and make sure that the login works.

    Raises:
        DemoFailed: the tables cannot be created.
    """
    try:
        call_command("migrate", verbosity=0, interactive=False)
    except DatabaseError as error:
        if isinstance(_root(error), errors.InsufficientPrivilege):
            remedy = "Use a role that may create tables and the extension 'vector'."
        else:
            remedy = "Begin with an empty database."
        raise DemoFailed(f"The tables cannot be created: {_reason(error)}. {remedy}") from error
    users = get_user_model().objects
    user, is_new = users.get_or_create(
        username=USERNAME, defaults={"is_staff": True, "is_superuser": True}
    )
    if is_new or not user.check_password(PASSWORD):
        user.set_password(PASSWORD)
        user.save()


def _reason(error: DatabaseError) -> str:
    """Return the first line of the server's own error."""
    said = str(_root(error)).strip() or type(error).__name__
    return said.splitlines()[0].rstrip(".:")


def _root(error: BaseException) -> BaseException:
    while deeper := error.__cause__ or error.__context__:
        error = deeper
    return error
