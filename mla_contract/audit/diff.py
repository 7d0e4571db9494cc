"""What changed between two profiles, as a report on what breaks a backend that followed the older one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from mla_contract.audit.profile import fields_of, reads_by_path


class ChangeKind(StrEnum):
    """Kinds of change, the breaking ones first."""

    NEW_READ = "new-required-read"
    NOW_REQUIRED = "read-now-required"
    DROPPED_FIELD = "dropped-field"
    CHANGED_FIELD = "changed-field"
    SIGNATURE = "changed-signature"
    FUNCTION = "changed-function"
    NEW_CONDITIONAL = "new-conditional-read"
    NEW_FIELD = "new-field"
    DROPPED_READ = "dropped-read"


BREAKING = frozenset(
    {
        ChangeKind.NEW_READ,
        ChangeKind.NOW_REQUIRED,
        ChangeKind.DROPPED_FIELD,
        ChangeKind.CHANGED_FIELD,
        ChangeKind.SIGNATURE,
    }
)


@dataclass(frozen=True, slots=True)
class Change:
    """One difference.

    Attributes:
        kind: What kind it is.
        subject: Field path, ``Class.field``, method or function.
        detail: What it was and what it is.
        place: ``file:line`` in the newer tree, where there is one.
    """

    kind: ChangeKind
    subject: str
    detail: str
    place: str | None = None

    @property
    def breaking(self) -> bool:
        """Return whether a backend that was right before may be wrong now."""
        return self.kind in BREAKING

    def __str__(self) -> str:
        """Return the change as one line."""
        mark = "breaking" if self.breaking else "note"
        where = f"  ({self.place})" if self.place else ""
        return f"{mark}: {self.kind.value}: {self.subject}: {self.detail}{where}"

    def as_json(self) -> dict[str, object]:
        """Return the change as JSON-ready data."""
        return {**asdict(self), "kind": self.kind.value, "breaking": self.breaking}


def diff_profiles(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Return the changes from one profile to another, breaking ones first.

    Args:
        old: The profile that a backend follows.
        new: The profile of the release it moves to.
    """
    changes = [*_reads(old, new), *_fields(old, new), *_signatures(old, new), *_functions(old, new)]
    order = list(ChangeKind)
    return sorted(changes, key=lambda c: (order.index(c.kind), c.subject, c.place or ""))


def _reads(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    before, after = reads_by_path(old), reads_by_path(new)
    for path, reads in after.items():
        firm = [r for r in reads if r["condition"] is None and not r["default"]]
        shown = (firm or reads)[0]
        place = f"{shown['file']}:{shown['line']}"
        readers = ", ".join(dict.fromkeys(str(r["function"]) for r in (firm or reads)[:3]))
        reached = "/".join(sorted({kind for r in reads for kind in r["reached_by"]}))
        if path not in before:
            kind = ChangeKind.NEW_READ if firm else ChangeKind.NEW_CONDITIONAL
            condition = "" if firm else f" only where {shown['condition'] or 'it has a default'}"
            yield Change(kind, path, f"read by {readers} of {reached} backends{condition}", place)
        elif firm and not any(r["condition"] is None and not r["default"] for r in before[path]):
            yield Change(
                ChangeKind.NOW_REQUIRED, path, f"was read under a condition, is read by {readers} always", place
            )
    for path in before.keys() - after.keys():
        read = before[path][0]
        yield Change(ChangeKind.DROPPED_READ, path, f"no longer read (was: {read['function']})")


def _fields(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    for earlier, later in _matched(old, new):
        cls = new["classes"][later]
        if cls["kind"] not in ("metadata", "batch"):
            continue
        place = f"{cls['file']}:{cls['line']}"
        short = later.rpartition(".")[2]
        then, now = fields_of(old, earlier), fields_of(new, later)
        for field in then.keys() - now.keys():
            yield Change(ChangeKind.DROPPED_FIELD, f"{short}.{field}", f"was {_described(then[field])}", place)
        for field in now.keys() - then.keys():
            yield Change(ChangeKind.NEW_FIELD, f"{short}.{field}", _described(now[field]), place)
        for field in now.keys() & then.keys():
            was, is_ = _described(then[field]), _described(now[field])
            if was != is_:
                yield Change(ChangeKind.CHANGED_FIELD, f"{short}.{field}", f"was {was}, is {is_}", place)


def _matched(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the names of classes of both profiles: equal ones, else those whose simple name is unique in both."""
    before, after = old["classes"], new["classes"]
    moved = _unique_names(before), _unique_names(after)
    for name in after:
        short = name.rpartition(".")[2]
        if name in before:
            yield name, name
        elif short in moved[0] and short in moved[1] and moved[0][short] not in after:
            yield moved[0][short], name


def _unique_names(classes: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for name in classes:
        found.setdefault(name.rpartition(".")[2], []).append(name)
    return {short: names[0] for short, names in found.items() if len(names) == 1}


def _described(field: Mapping[str, Any]) -> str:
    text = str(field["type"] or "untyped")
    return f"{text} = {field['default']}" if field["default"] is not None else text


def _signatures(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    before, after = old["signatures"], new["signatures"]
    for name in before.keys() & after.keys():
        if before[name] != after[name]:
            yield Change(ChangeKind.SIGNATURE, name, f"was ({before[name]}), is ({after[name]})")
    for name in before.keys() - after.keys():
        yield Change(ChangeKind.SIGNATURE, name, f"was ({before[name]}), is gone")


def _functions(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    before, after = old["functions"], new["functions"]
    for name in after:
        if name not in before:
            yield Change(ChangeKind.FUNCTION, name, "is new among the shared functions")
        elif before[name] != after[name]:
            yield Change(ChangeKind.FUNCTION, name, f"does something else now ({before[name]} -> {after[name]})")
    for name in before.keys() - after.keys():
        yield Change(ChangeKind.FUNCTION, name, "is gone from the shared functions")
