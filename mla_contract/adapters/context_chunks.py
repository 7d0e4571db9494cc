"""The only planner of context chunks: cached context is gathered into a workspace of limited rows, chunk by chunk."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mla_contract.adapters.context_fields import FieldContextPlan, even_chunks
from mla_contract.adapters.context_packed import PackedContextPlan, packed_chunks
from mla_contract.adapters.context_rule import ContextRule
from mla_contract.adapters.release import behaviour_of


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
