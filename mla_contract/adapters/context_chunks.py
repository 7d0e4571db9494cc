"""The only planner of context chunks: cached context is gathered into a workspace of limited rows, chunk by chunk."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mla_contract.adapters.context_fields import FieldContextPlan, even_chunks
from mla_contract.adapters.context_packed import PackedContextPlan, packed_chunks
from mla_contract.adapters.context_parallel import ContextParallel
from mla_contract.adapters.fault import InvalidBatch
from mla_contract.adapters.release import NEWEST, behaviour_of


@dataclass(frozen=True, slots=True)
class ContextRule:
    """What bounds a context chunk.

    Attributes:
        workspace_rows: Rows of the workspace over all ranks together, one for each token.
        block_size: Tokens of a cache block; the gather cannot start inside one.
        parallel: The sharing of the cache; each rank's share of the workspace is ``workspace_rows // size``.
        release: The vLLM release whose plan, and whose shape of plan, is wanted.
        alignment: Tokens of which every chunk start is a multiple: ``lcm(block_size, size * interleave)`` everywhere.
    """

    workspace_rows: int
    block_size: int
    parallel: ContextParallel = field(default_factory=ContextParallel)
    release: str | None = NEWEST
    alignment: int = field(init=False)

    def __post_init__(self) -> None:
        behaviour_of(self.release)
        object.__setattr__(self, "alignment", lcm(self.block_size, self.parallel.span))
        if self.block_size < 1 or self.workspace_rows < self.alignment:
            raise InvalidBatch(
                "workspace_rows",
                {"expected": f"at least {self.alignment}, the chunk alignment", "got": self.workspace_rows},
                help="round the workspace up to lcm(block_size, size * interleave)",
            )


def plan_context_chunks(
    context_lens: NDArray[Any], query_start_loc: NDArray[Any], rule: ContextRule
) -> PackedContextPlan | FieldContextPlan | None:
    """Return chunks that partition each prefill's context in order.

    Presence depends on the data alone: without any context there is no plan, whatever the configuration.

    Args:
        context_lens: [num_prefills] ints, cached tokens of each prefill.
        query_start_loc: [num_prefills+1] ints, prefix sum of the prefills' query lengths, from 0.
        rule: Workspace, alignment, sharing and release.

    Returns:
        The packed plan since release 0.28, the even split up to 0.27, None if no prefill has context.

    Raises:
        InvalidBatch: Up to 0.27, the workspace has less than one aligned piece for each prefill with context.

    Sync: none.
    Source: vLLM 0.32.0 model_executor/layers/attention/mla_attention.py, plan_mla_context_chunks and
        build_mla_chunked_context_metadata; 0.27.1 the latter. There, alignment to blocks is left out on some platforms.
    """
    lens = np.array(context_lens, dtype=np.int32)
    if not np.count_nonzero(lens):
        return None
    query_start_loc = np.asarray(query_start_loc, dtype=np.int32)
    if behaviour_of(rule.release).packed_context:
        return packed_chunks(lens, query_start_loc, rule)
    return even_chunks(lens, query_start_loc, rule)
