"""What a clause needs to know before it can speak: each need by the name that reports and pages show.

A settled need follows from configuration and declaration, so it is asked once for a builder; the others are asked of
each step. Clauses read what they need without asking again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from mla_contract.contract.schema.declaration import Routing
from mla_contract.contract.step.context import StepContext


@dataclass(frozen=True, slots=True, eq=False)
class Need:
    """One thing that must be known.

    Attributes:
        text: How pages and reports name it.
        is_met: Whether a step has it.
        settled: Whether facts and declaration alone decide it.
        traced: Whether only the trace of a build can tell it.
        of: The need without which this one is never met, so that it need not be asked.
        where: The steps that it is about; None for all. Elsewhere a clause that needs it has nothing to look at: a
            breach is reported, but it is not counted as decided.
    """

    text: str
    is_met: Callable[[StepContext], bool]
    settled: bool = False
    traced: bool = False
    of: Need | None = None
    where: Callable[[StepContext], bool] | None = None

    def first_unmet(self, step: StepContext) -> Need | None:
        """Return the need that a step does not meet: the one that this one depends on, or this one; None if it does."""
        found = None if self.of is None else self.of.first_unmet(step)
        return found or (None if self.is_met(step) else self)


@cache
def fact(name: str) -> Need:
    """Return the need of a number of the configuration."""
    return Need(f"facts.{name}", lambda step: getattr(step.facts, name) is not None, settled=True)


@cache
def traced(name: str) -> Need:
    """Return the need of a record of what happened around the build."""
    return Need(f"trace.{name}", lambda step: getattr(step.trace, name) is not None, traced=True)


BATCH = Need("batch", lambda step: step.batch is not None)
START_LOC = Need("batch.query_start_loc_cpu", lambda step: step.start_loc is not None)
UPPER_LENS = Need("batch.seq_lens_cpu_upper_bound", lambda step: step.upper_lens is not None)
CONTEXT_LENS = Need(
    "batch.query_start_loc_cpu and batch.seq_lens_cpu_upper_bound", lambda step: step.context_lens is not None
)
NUM_TOKENS = Need("batch.num_actual_tokens", lambda step: step.num_tokens is not None)
DECODES = Need("metadata.num_decodes", lambda step: step.num_decodes is not None)
COUNTS = Need(
    "metadata counts",
    lambda step: step.num_decodes is not None and step.num_prefills is not None and step.num_decode_tokens is not None,
)

RECORD = Need("metadata", lambda step: step.metadata is not None)
MLA = Need("MLA metadata", lambda step: step.is_mla)
SPARSE = Need("sparse metadata", lambda step: step.is_sparse, of=MLA)
INDEXER = Need("indexer metadata", lambda step: step.is_indexer)
PREFILL = Need("metadata.prefill", lambda step: step.prefill is not None and not step.is_indexer)
ANY_DECODE = Need("metadata.decode of any record", lambda step: step.decode is not None)
DECODE = Need("metadata.decode", lambda step: step.is_mla, of=ANY_DECODE)
INDEXER_PREFILL = Need("indexer metadata.prefill", lambda step: step.prefill is not None, of=INDEXER)
INDEXER_DECODE = Need("indexer metadata.decode", lambda step: step.decode is not None, of=INDEXER)
GLOBAL_LENS = Need(
    "indexer metadata.decode.global_seq_lens",
    lambda step: getattr(step.decode, "global_seq_lens", None) is not None,
    of=INDEXER_DECODE,
)
CONTEXT = Need("metadata.prefill.chunked_context", lambda step: step.chunked_context is not None, of=PREFILL)
CHUNK_RECORDS = Need("chunk records", lambda step: hasattr(step.chunked_context, "chunks"), of=CONTEXT)
READABLE_SHAPE = Need(
    "chunk records: the old shape is not read under DCP",
    lambda step: step.facts.dcp_size <= 1 or hasattr(step.chunked_context, "chunks"),
    of=CONTEXT,
)

DCP = Need("facts.dcp_size", lambda step: step.facts.dcp_size > 1, settled=True)
PCP = Need("facts.pcp_size", lambda step: step.facts.pcp_size > 1, settled=True)
WHOLE_QUERIES = Need(
    "whole queries: prefill context parallelism shards them", lambda step: step.facts.pcp_size <= 1, settled=True
)
WHOLE_CACHE = Need(
    "a whole cache: decode context parallelism interleaves it", lambda step: step.facts.dcp_size <= 1, settled=True
)
OUTSIDE_CAPTURE = Need("facts.capturing", lambda step: step.facts.capturing is False, settled=True)
SPLIT = Need(
    "a split: the backend declares that all tokens are decodes", lambda step: not step.all_decodes, settled=True
)
ALL_DECODES = Need("a declaration that all tokens are decodes", lambda step: step.all_decodes, settled=True)
SHARED_SPLIT = Need(
    "a declared shared split",
    lambda step: step.declaration is not None and step.declaration.routing is Routing.SHARED_SPLIT,
    settled=True,
)
