"""Read OLLAMA_HOST in all its forms. Pure.

Source: ollama envconfig/config.go, ``Host()`` and ``ConnectableHost()``.
"""

from __future__ import annotations

from typing import Final

DEFAULT_PORT: Final = "11434"
_PORTS: Final = {"http": "80", "https": "443"}


def url(value: str | None) -> str:
    """Return the base URL of the server, without a slash at its end."""
    host = (value or "").strip().strip("\"'").strip()
    scheme, found, rest = host.partition("://")
    if not found:
        scheme, rest, port = "http", host, DEFAULT_PORT
    else:
        scheme = scheme.lower()
        port = _PORTS.get(scheme, DEFAULT_PORT)
    if rest == "ollama.com" and not found:
        return "https://ollama.com:443"
    rest, _, path = rest.partition("/")
    user, at, rest = rest.rpartition("@")
    name, given = _split(rest)
    if given is not None:
        is_port = given.isdecimal() and int(given) <= 65535
        port = given if is_port else DEFAULT_PORT
    name = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(name, name)  # noqa: S104
    name = f"[{name}]" if ":" in name else name
    path = path.strip("/")
    return f"{scheme}://{user}{at}{name}:{port}" + (f"/{path}" if path else "")


def _split(rest: str) -> tuple[str, str | None]:
    """Return name and port of "host", "host:1", ":1", "::1", "[::1]" or "[::1]:1"."""
    if rest.startswith("["):
        name, _, port = rest[1:].partition("]")
        return name, port[1:] if port.startswith(":") else None
    if rest.count(":") > 1:
        return rest, None
    name, colon, port = rest.partition(":")
    return name, port if colon else None
