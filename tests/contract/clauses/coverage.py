"""The list of public cases by row: the incident that tests it, or why metadata cannot decide it."""

from __future__ import annotations

from collections.abc import Mapping

from tests.contract.clauses.incidents import INCIDENTS

ROWS: tuple[int, ...] = (
    *(1, 2, 3, 6, 7, 9, 10, 11, 13, 16, 18, 19, 20, 22, 23, 24, 25, 26, 28, 30, 31, 32, 34, 35, 37, 38, 39, 40, 41),
    *(43, 44, 45, 46, 47, 48, 50, 52, 53, 55, 58, 59, 60, 61, 62, 64, 65, 68, 69, 70, 73, 74, 76, 77, 80, 82, 83, 85),
    *(86, 87, 88, 89, 91, 94, 96, 97, 98, 100, 101, 103),
)
"""Every row of the list, by its number."""

NOT_DECIDABLE: Mapping[int, str] = {
    16: "static: the runner guesses a capability from a threshold; no metadata is built before start-up fails",
    41: "an allocation outside the manager inside the op: metadata does not show it; the source audit does",
    85: "strides of the cache, which is not metadata; two validators of the engine disagree",
    86: "a call that does not bind to the installed signature; a signature check sees it",
    101: "a scale applied twice by a kernel: only results show it",
}
"""Rows that no clause decides, with the reason."""

COVERED: Mapping[int, tuple[str, ...]] = {incident.row: incident.codes for incident in INCIDENTS}
"""Rows that a clause decides, with the clauses."""
