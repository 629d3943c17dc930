"""Find where docs.python.org documents a name. Pure."""

from __future__ import annotations

import builtins
import inspect
import sys
from urllib.parse import quote

SITE = f"https://docs.python.org/{sys.version_info.major}.{sys.version_info.minor}"

# Modules inside packages that have their own page.
PAGES = """
    collections.abc concurrent.futures curses.ascii curses.panel email.charset
    email.contentmanager email.encoders email.errors email.generator email.header
    email.headerregistry email.iterators email.message email.mime email.parser email.policy
    email.utils html.entities html.parser http.client http.cookiejar http.cookies http.server
    importlib.metadata importlib.resources importlib.resources.abc logging.config
    logging.handlers multiprocessing.shared_memory os.path tkinter.colorchooser tkinter.dnd
    tkinter.font tkinter.messagebox tkinter.scrolledtext tkinter.ttk unittest.mock urllib.error
    urllib.parse urllib.request urllib.robotparser xml.dom xml.dom.minidom xml.dom.pulldom
    xml.etree.ElementTree xml.sax xml.sax.handler xmlrpc.client xmlrpc.server
"""

# The contents of these are spread over many pages, or not documented there at all.
SEARCHED = frozenset({"asyncio", "distutils", "encodings", "importlib", "multiprocessing"})


def documentation_url(name: str, module: str) -> str:
    """Return the URL of the documentation of ``name``, or of a search if its page is uncertain."""
    if module == "builtins":
        return f"{SITE}/library/{_builtins_page(name)}.html#{quote(name)}"
    page = _page(name, module)
    if page is None:
        return f"{SITE}/search.html?q={quote(name)}"
    anchor = f"module-{name}" if page == name else name
    return f"{SITE}/library/{page.lower()}.html#{quote(anchor)}"


def _builtins_page(name: str) -> str:
    value = getattr(builtins, name.split(".")[0], None)
    if inspect.isbuiltin(value):
        return "functions"
    if isinstance(value, type) and issubclass(value, BaseException):
        return "exceptions"
    return "stdtypes" if "." in name else "functions"


def _page(name: str, module: str) -> str | None:
    parts = name.split(".")
    for length in range(len(parts), 1, -1):
        if (page := ".".join(parts[:length])) in PAGES.split():
            return page
    if module in SEARCHED and name != module:
        return None
    return module
