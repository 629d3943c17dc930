from django.db import migrations

IGNORE_CASE = """
    CREATE TYPE app_ignore_case;
    CREATE FUNCTION app_ignore_case_in(cstring) RETURNS app_ignore_case
        LANGUAGE internal IMMUTABLE STRICT AS 'textin';
    CREATE FUNCTION app_ignore_case_out(app_ignore_case) RETURNS cstring
        LANGUAGE internal IMMUTABLE STRICT AS 'textout';
    CREATE TYPE app_ignore_case (
        INPUT = app_ignore_case_in,
        OUTPUT = app_ignore_case_out,
        LIKE = text,
        CATEGORY = 'S'
    );
    CREATE CAST (app_ignore_case AS text) WITHOUT FUNCTION AS IMPLICIT;
    CREATE CAST (text AS app_ignore_case) WITHOUT FUNCTION AS ASSIGNMENT;
    CREATE FUNCTION app_ignore_case_eq(app_ignore_case, app_ignore_case) RETURNS boolean
        LANGUAGE sql IMMUTABLE STRICT
        AS $$ SELECT lower($1::text) = lower($2::text) $$;
    CREATE OPERATOR = (
        LEFTARG = app_ignore_case,
        RIGHTARG = app_ignore_case,
        FUNCTION = app_ignore_case_eq
    );
"""


class Migration(migrations.Migration):
    """What some of the tables need before they can be."""

    initial = True

    operations = [
        migrations.RunSQL(IGNORE_CASE, "DROP TYPE app_ignore_case CASCADE"),
        migrations.RunSQL("CREATE SCHEMA archive", "DROP SCHEMA archive"),
    ]
