"""What is inconsistent in vLLM and harmless: noted, never a violation, so that no mode raises it or warns of it.

A note is stated like a clause, but it blames nobody: the reader of what is inconsistent copes, and says so here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mla_contract.contract.step.context import read


@dataclass(frozen=True, slots=True)
class Note:
    """One inconsistency that breaks nothing.

    Attributes:
        name: How reports name it.
        sentence: What is inconsistent.
        harmless: Why nothing breaks.
        source: Where it was seen.
        applies: Whether a record with its batch shows it; asks shapes and types alone.
    """

    name: str
    sentence: str
    harmless: str
    source: str
    applies: Callable[[Any, Any], bool]


def _flags_live_only(_: Any, batch: Any) -> bool:
    """Return whether there are fewer flags than requests."""
    flags, requests = read(batch, "is_prefilling"), read(batch, "num_reqs")
    return flags is not None and type(requests) is int and flags.shape[0] < requests


def _array_for_list(record: Any, _: Any) -> bool:
    """Return whether the totals of context chunks are an array."""
    totals = read(read(read(record, "prefill"), "chunked_context"), "chunk_total_token")
    return hasattr(totals, "dtype")


NOTES: tuple[Note, ...] = (
    Note(
        "flags of live requests only",
        "`is_prefilling` has an entry for each live request, where every other array has one for padding as well.",
        "The split reads flags of live requests; a padding request has no query and counts as a decode.",
        "vLLM 0.32.0 v1/worker/gpu/model_runner.py",
        _flags_live_only,
    ),
    Note(
        "an array for a list",
        "`chunk_total_token` is a host array, where its annotation says a list of ints.",
        "Its readers index it and take each entry as an int; it lives on the host, so that nothing waits.",
        "vLLM 0.24.0 to 0.27.1 model_executor/layers/attention/mla_attention.py",
        _array_for_list,
    ),
)


def notes_of(record: Any, batch: Any) -> tuple[Note, ...]:
    """Return the notes that a record with its batch deserves; never raises. Sync: none."""
    return tuple(note for note in NOTES if _applies(note, record, batch))


def _applies(note: Note, record: Any, batch: Any) -> bool:
    """Return whether a note applies; an object that cannot be looked at deserves none."""
    try:
        return note.applies(record, batch)
    except Exception:  # noqa: BLE001 - the records are foreign; their faults are for the structure's check to report
        return False


def notes_page() -> str:
    """Return the page of all notes as Markdown, without its first line."""
    parts = [f"## {one.name}\n\n{one.sentence} {one.harmless}\n\nSeen in {one.source}.\n" for one in NOTES]
    intro = "What is inconsistent in vLLM and harmless. Debug mode lists it at exit; no mode raises it or warns of it."
    return f"# Notes\n\n{intro}\n\n" + "\n".join(parts)
