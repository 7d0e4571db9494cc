"""Who tells what clauses need beyond record and batch, and when: what the pages of clauses say, and a test compares.

Everything else that a need asks of is the record or the batch itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from mla_contract.contract.clauses.clause import Clause
from mla_contract.contract.clauses.need import Need


class Producer(StrEnum):
    """A place that ships and tells a need."""

    ENGINE = "the debug mode, at every build in an engine"
    OWN_BACKENDS = (
        "the debug mode, where the builder's own configuration tells it, as that of this package's backends does"
    )
    CONFORMANCE = "`mla-contract check`, which brings it about"


_E, _O, _C = Producer.ENGINE, Producer.OWN_BACKENDS, Producer.CONFORMANCE

PRODUCERS: Mapping[str, tuple[Producer, ...]] = MappingProxyType(
    {
        "facts.kernel_block_size": (_E, _C),
        "facts.decode_threshold": (_E, _C),
        "facts.dcp_size": (_E,),
        "facts.pcp_size": (_E,),
        "facts.compress_ratio": (_E,),
        "facts.short_extends_are_decodes": (_E, _O, _C),
        "facts.logits_budget_bytes": (_E, _O, _C),
        "facts.gather_by_page": (_O, _C),
        "facts.buffer_rows": (_O, _C),
        "facts.row_stride": (_C,),
        "facts.wide_addresses": (_C,),
        "facts.gather_kind": (_C,),
        "facts.cache_dtype": (_C,),
        "trace.alive": (_E, _C),
        "trace.calls": (_C,),
        "trace.captured": (_C,),
        "trace.device_reads": (_C,),
        "trace.generation": (_C,),
        "trace.indexer": (_C,),
        "trace.metadata_class": (_C,),
        "trace.planned_work": (_C,),
        "trace.reuse": (_C,),
        "trace.slices": (_C,),
        "trace.workspace": (_C,),
    }
)

CALLERS_ALONE = frozenset(
    {
        "facts.dummy",
        "facts.topk_rank",
        "facts.topk_shape",
        "facts.topk_rows",
        "facts.pinned_sources",
        "facts.schedule_clamped",
    }
)
"""What nothing that ships tells yet: only a backend's own test that hands it to ``check_metadata``."""

_NAME = re.compile(r"(facts|trace)\.\w+")


def told_name(need: Need) -> str | None:
    """Return what must be told for a need, as ``facts.name`` or ``trace.name``; None when record and batch show it."""
    found = _NAME.match(need.text) if need.settled or need.traced else None
    return found.group() if found else None


def deciders(clause: Clause) -> str:
    """Return in words who decides a clause, and when."""
    names = sorted({name for need in clause.needs if (name := told_name(need)) is not None})
    if not names:
        return "the debug mode and `mla-contract check`, wherever record and batch have what it needs"
    alone = [f"`{name}`" for name in names if name in CALLERS_ALONE]
    if alone:
        return (
            f"a backend's own test, which hands {' and '.join(alone)} to `check_metadata`; nothing that ships tells it"
        )
    told = {name: PRODUCERS.get(name) or ("nothing that ships",) for name in names}
    return "; ".join(f"`{name}` is told by {', and by '.join(told[name])}" for name in names)
