"""What the audit remembers between runs, under the user's cache directory. Anything damaged there counts as absent."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import mla_contract

KEPT_RESULTS = 32
"""How many results of whole audits are kept."""

KEPT_VERDICTS = 50_000
"""How many verdicts about single files are kept."""

Verdict = tuple[int, str] | None
"""Line and reason of a file that cannot be parsed, or None for one that can."""


def cache_root(override: Path | None = None) -> Path:
    """Return the directory of this tool's caches.

    Args:
        override: Directory to use instead; else ``MLA_CONTRACT_CACHE``, ``XDG_CACHE_HOME`` or ``~/.cache`` decide.
    """
    if override is not None:
        return override
    if named := os.environ.get("MLA_CONTRACT_CACHE"):
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base and os.path.isabs(base) else Path("~/.cache").expanduser()) / "mla-contract"


def digest_of(parts: Iterable[str]) -> str:
    """Return one digest of an ordered list of words."""
    digest = blake2b(digest_size=16)
    for part in parts:
        digest.update(part.encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()


@cache
def own_digest() -> str:
    """Return the digest of this tool: its sources, its data and the Python that runs it."""
    digest = blake2b(sys.version.encode(), digest_size=16)
    root = Path(mla_contract.__path__[0])
    for suffix in ("*.py", "*.json"):
        for path in sorted(root.rglob(suffix)):
            digest.update(f"{path.relative_to(root)}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old text or the new one, never a part.

    Raises:
        OSError: The file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


class ResultCache:
    """Results of whole audits by the digest of everything that they depend on."""

    def __init__(self, root: Path) -> None:
        """Use a directory below the root of the caches."""
        self._directory = root / "results"

    def get(self, key: str) -> Any:
        """Return the payload of a key, or None."""
        path = self._directory / f"{key}.json"
        try:
            entry = json.loads(path.read_text(encoding="utf-8"))
            payload = entry["payload"] if entry["digest"] == _payload_digest(entry["payload"]) else None
            os.utime(path)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        return payload

    def put(self, key: str, payload: Any) -> None:
        """Keep a JSON payload; a cache that cannot be written stays as it is."""
        entry = {"digest": _payload_digest(payload), "payload": payload}
        with contextlib.suppress(OSError):
            write_atomically(self._directory / f"{key}.json", json.dumps(entry))
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        entries = sorted(self._directory.glob("*.json"), key=lambda path: path.stat().st_mtime)
        for path in entries[:-KEPT_RESULTS]:
            path.unlink(missing_ok=True)


class VerdictCache:
    """Verdicts of the parser by the digest of the file, for the Python that runs."""

    def __init__(self, root: Path) -> None:
        """Use one file below the root of the caches."""
        tag = digest_of([sys.version])[:12]
        self._path = root / f"syntax-{tag}.json"
        self._loaded: dict[str, Verdict] = {}

    def load(self) -> dict[str, Verdict]:
        """Return all verdicts that are known."""
        try:
            entries = json.loads(self._path.read_text(encoding="utf-8"))
            good = {digest: None for digest in entries["good"].split()}
            bad = {str(digest): (int(line), str(reason)) for digest, (line, reason) in entries["bad"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return {}
        self._loaded = {**good, **bad}
        return dict(self._loaded)

    def save(self, verdicts: Mapping[str, Verdict]) -> None:
        """Keep verdicts beside the loaded ones, or instead of them once there are too many."""
        merged = {**self._loaded, **verdicts}
        kept = merged if len(merged) <= KEPT_VERDICTS else verdicts
        entries = {
            "good": " ".join(digest for digest, verdict in kept.items() if verdict is None),
            "bad": {digest: verdict for digest, verdict in kept.items() if verdict is not None},
        }
        with contextlib.suppress(OSError):
            write_atomically(self._path, json.dumps(entries))


def _payload_digest(payload: Any) -> str:
    return digest_of([json.dumps(payload, sort_keys=True)])
