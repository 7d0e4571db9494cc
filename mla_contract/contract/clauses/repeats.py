"""What a record repeats of its batch: one rule for every array that both have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from mla_contract.contract.clauses.clause import FINE, Breach, Found, clause
from mla_contract.contract.clauses.need import BATCH, WHOLE_QUERIES, Need
from mla_contract.contract.clauses.owners import equal
from mla_contract.contract.clauses.tables import compare_tables
from mla_contract.contract.step.context import Ints, StepContext
from mla_contract.contract.step.host import host, host_ints

REPEATING = Need(
    "metadata that repeats its batch: a ring has slots of its own",
    lambda step: (
        step.is_mla or step.is_indexer or (step.layer_kind is not None and hasattr(step.metadata, "block_table"))
    ),
)

Difference = Callable[[StepContext, str, Any], Found]
"""Returns the breach of a record's array, given its path, where it is not its batch's."""


def _compare(path: str, own: Ints, wanted: Ints, live: int, padding: Any) -> Found:
    """Return the breach where live entries differ, or where an entry behind them is neither equal nor padding."""
    if equal(own, wanted):
        return FINE
    size = min(len(own), len(wanted))
    wrong = own != padding
    wrong[: min(live, size)] = True
    wrong[:size] &= own[:size] != wanted[:size]
    rows = np.flatnonzero(wrong)
    if not len(rows):
        return FINE
    row = int(rows[0])
    if row >= size:
        return (Breach(path, "an entry behind its batch is not padding", "padding", f"{own[row]} at entry {row}"),)
    message = "differs from its batch" if row < live else "neither its batch's nor padding"
    return (Breach(path, message, f"{wanted[row]} at entry {row}", str(own[row])),)


def _offsets(step: StepContext, path: str, array: Any) -> Found:
    """Offsets: padding repeats the last one, in the batch as well."""
    wanted = step.device_start_loc
    return _compare(path, host_ints(array), wanted, len(wanted), wanted[-1])


def _slots(step: StepContext, path: str, array: Any) -> Found:
    """Slots: -1 behind the live tokens."""
    if step.facts.compress_ratio != 1 or step.facts.pcp_size > 1:
        return FINE  # a compressed cache has slots of its own, and shards of prompts are put together by the builder
    return _compare(path, host_ints(array), step.slots, int(step.device_start_loc[-1]), -1)


def _lens(step: StepContext, path: str, array: Any) -> Found:
    """Lengths: 0 behind the live requests."""
    wanted = step.seq_lens
    return _compare(path, host_ints(array), wanted, len(wanted), 0)


def _table(step: StepContext, path: str, array: Any) -> Found:
    """Block tables, as far as requests reach: by one column where the size of a block is not known."""
    own, wanted, size = host(array), step.table, step.facts.kernel_block_size
    rows = min(len(own), len(wanted))
    own, wanted, lens = own[:rows], wanted[:rows], step.seq_lens[:rows]
    if size is None:
        return compare_tables(path, own[:, :1], wanted[:, :1], np.minimum(lens, 1), 1)
    return compare_tables(path, own, wanted, lens, size * step.facts.dcp_size)


REPEATED: Mapping[str, tuple[str, Difference]] = MappingProxyType(
    {
        "query_start_loc": ("query_start_loc", _offsets),
        "slot_mapping": ("slot_mapping", _slots),
        "seq_lens": ("seq_lens", _lens),
        "block_table": ("block_table_tensor", _table),
    }
)
"""For each array that a record may share with its batch: its name there, and how they are compared."""


@clause(
    "MLA255",
    "An array that a record repeats of its batch equals it on live rows, and behind them too or is padding.",
    level="values",
    needs=(BATCH, REPEATING, WHOLE_QUERIES),
    incident="vllm#46074 vllm#48261 ATOM#2044",
    example="block_table of another group, slot_mapping of the step before",
    help="copy every row of this step into the persistent buffer, and its padding behind them",
)
def check_repeats(step: StepContext) -> Found:
    """Check the arrays that record and batch both have; what is one array in memory need not be read."""
    found: list[Breach] = []
    for name, (source, differs) in REPEATED.items():
        own, given = getattr(step.metadata, name, None), getattr(step.batch, source, None)
        if own is not None and given is not None and not is_same(own, given):
            found += differs(step, f"{step.name}.{name}", own)
    return tuple(found)


def is_same(own: Any, given: Any) -> bool:
    """Return whether two arrays are one piece of memory, read the same way."""
    return own is given or (
        own.data_ptr() == given.data_ptr()
        and own.shape == given.shape
        and own.stride() == given.stride()
        and own.dtype == given.dtype
    )
