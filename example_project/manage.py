#!/usr/bin/env python
"""Django's command line for the example project. ``manage.py demo`` runs all of it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured
from django.core.management import execute_from_command_line


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    # In a clone that is not installed, the package lies beside this folder.
    sys.path.append(str(Path(__file__).resolve().parent.parent))
    # An orderly exit, so that the embedded Postgres stops with its last user.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        # The message says what to do. A traceback would only hide it.
        sys.exit(str(error))


if __name__ == "__main__":
    main()
