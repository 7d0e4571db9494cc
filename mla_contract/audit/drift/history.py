"""What the shipped profiles know of earlier releases: which fields a class had, and whose function a hash is."""

from __future__ import annotations

from mla_contract.profiles import known_minors, load_classes


def releases_of_function(name: str, digest: str) -> str | None:
    """Return the releases whose shared function of a name has a hash, as ``0.26 to 0.30``, or None."""
    found = [
        minor
        for minor in known_minors()
        if any(_plain(known) == _plain(name) and d == digest for known, d in load_classes(minor)["functions"].items())
    ]
    if not found:
        return None
    return found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}"


def last_release_with(cls: str, field: str) -> str | None:
    """Return the last release whose class of a simple name had a field, or None where none is known to have had it."""
    found = None
    for minor in known_minors():
        for qualname, known in load_classes(minor)["classes"].items():
            if qualname.rpartition(".")[2] == cls and (field in known["fields"] or field in known["inherited"]):
                found = minor
    return found


def _plain(qualname: str) -> str:
    return qualname.rpartition(":")[2].rpartition(".")[2].lstrip("_")
