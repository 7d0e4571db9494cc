"""A baseline: the findings a project lives with, each with a reason. It may only shrink."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mla_contract.audit.finding import Finding
from mla_contract.audit.source import AuditError
from mla_contract.audit.source.cache import write_atomically
from mla_contract.audit.tool_rules import GROUP, STALE_BASELINE, tool_finding

VERSION = 1
RECORDED = "recorded by --write-baseline"

_KEYS = ("code", "path", "class", "field", "reader")
_FORM = '{"version": 1, "entries": [{"code", "path", "class", "field", "reader", "reason"}, ...]}'
_HELP = "write one with mla-contract audit --baseline FILE --write-baseline"

Identity = tuple[str, str, str | None, str | None, str | None]
"""Code, path, class, field, reader: what stays when code moves inside its file."""


@dataclass(frozen=True, slots=True)
class BaselineEntry:
    """One finding of the baseline.

    Attributes:
        identity: Which finding.
        reason: Why it is lived with.
    """

    identity: Identity
    reason: str


def identity_of(finding: Finding) -> Identity:
    """Return what a baseline knows a finding by."""
    return (finding.code, finding.path, finding.cls, finding.field, finding.reader)


def read_baseline(path: Path) -> tuple[BaselineEntry, ...]:
    """Read a baseline.

    Raises:
        AuditError: There is none, or it is not one.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise AuditError(f"--baseline {path}: no such file", _HELP) from error
    except OSError as error:
        raise AuditError(f"--baseline {path}: cannot be read: {error.strerror}", _HELP) from error
    except (ValueError, RecursionError) as error:
        raise AuditError(f"--baseline {path}: not JSON: {error}", _HELP, expected=_FORM) from error
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise AuditError(f"--baseline {path}: not a baseline of version {VERSION}", _HELP, expected=_FORM)
    entries = document.get("entries")
    if not isinstance(entries, list):
        raise AuditError(f"--baseline {path}: entries is not a list", _HELP, expected=_FORM)
    return tuple(_entry(path, number, item) for number, item in enumerate(entries))


def apply_baseline(
    findings: Iterable[Finding], entries: Iterable[BaselineEntry], codes: frozenset[str], path: Path
) -> tuple[list[Finding], int]:
    """Take away the findings of a baseline, and add one for each entry that matches none.

    Args:
        findings: What the audit found.
        entries: The baseline.
        codes: Codes that are reported; entries of other codes are left alone.
        path: File of the baseline, which stale entries are reported in.

    Returns:
        The findings that remain, and how many were taken away.
    """
    left = Counter(entry.identity for entry in entries)
    remaining = []
    known = 0
    for finding in sorted(findings, key=Finding.sort_key):
        if finding.group != GROUP and left[identity_of(finding)] > 0:
            left[identity_of(finding)] -= 1
            known += 1
        else:
            remaining.append(finding)
    for identity, count in sorted(left.items(), key=lambda item: _sortable(item[0])):
        if count > 0 and identity[0] in codes:
            message = f"{_described(identity)} is in the baseline{f' {count} times' if count > 1 else ''} and not found"
            help_ = "remove the entry, or run again with --write-baseline"
            remaining.append(tool_finding(STALE_BASELINE, path.as_posix(), 1, message, help=help_))
    return remaining, known


def write_baseline(path: Path, findings: Iterable[Finding], codes: frozenset[str]) -> int:
    """Write the baseline of findings, unless there is a smaller one.

    Args:
        path: File to write.
        findings: What the audit found and no comment allows.
        codes: Codes that are reported; old entries of other codes are kept.

    Returns:
        How many entries it holds.

    Raises:
        AuditError: The baseline would grow, or cannot be written.
    """
    new = Counter(identity_of(finding) for finding in findings if finding.group != GROUP and finding.code in codes)
    old = read_baseline(path) if path.exists() else ()
    kept = [entry for entry in old if entry.identity[0] not in codes]
    if path.exists() and (grown := new - Counter(entry.identity for entry in old)):
        first = min(grown, key=_sortable)
        raise AuditError(
            f"--write-baseline: {path} would grow by {grown.total()}, first by {_described(first)}",
            "correct it, or allow it in the source with # mla: allow CODE -- reason; a baseline may only shrink",
        )
    reasons: dict[Identity, list[str]] = {}
    for entry in old:
        reasons.setdefault(entry.identity, []).append(entry.reason)
    for identity, count in new.items():
        given = reasons.get(identity, [])
        kept += [BaselineEntry(identity, given[index] if index < len(given) else RECORDED) for index in range(count)]
    kept.sort(key=lambda entry: (_sortable(entry.identity), entry.reason))
    document = {"version": VERSION, "entries": [_as_json(entry) for entry in kept]}
    try:
        write_atomically(path, json.dumps(document, indent=2) + "\n")
    except OSError as error:
        raise AuditError(
            f"--write-baseline: {path} cannot be written: {error.strerror}", "name another file"
        ) from error
    return len(kept)


def _entry(path: Path, number: int, item: Any) -> BaselineEntry:
    where = f"--baseline {path}: entry {number}"
    if not isinstance(item, Mapping) or set(item) != {*_KEYS, "reason"}:
        raise AuditError(f"{where} has other keys than it should", _HELP, expected=", ".join((*_KEYS, "reason")))
    code, file, cls, field, reader = (item[key] for key in _KEYS)
    if not (isinstance(code, str) and isinstance(file, str)):
        raise AuditError(f"{where}: code and path are texts", _HELP, expected=_FORM)
    if not all(value is None or isinstance(value, str) for value in (cls, field, reader)):
        raise AuditError(f"{where}: class, field and reader are texts or null", _HELP, expected=_FORM)
    reason = item["reason"]
    if not (isinstance(reason, str) and reason.strip()):
        raise AuditError(f"{where} has no reason", "say in it why the finding is lived with")
    return BaselineEntry((code, file, cls, field, reader), reason)


def _as_json(entry: BaselineEntry) -> dict[str, str | None]:
    return {**dict(zip(_KEYS, entry.identity, strict=True)), "reason": entry.reason}


def _sortable(identity: Identity) -> tuple[str, ...]:
    code, path, *rest = identity
    return (path, code, *(part or "" for part in rest))


def _described(identity: Identity) -> str:
    code, path, cls, field, reader = identity
    subject = ".".join(part for part in ((cls or "").rpartition(".")[2], field) if part)
    return " ".join(part for part in (code, "in", path, f"({subject})" if subject else "", reader or "") if part)
