"""As oscar_fork_app writes it."""

from oscar.apps.catalogue.admin import *  # noqa: F403
