"""The CUDA sparse record: padded rows keep -1."""

from __future__ import annotations

import pytest
import torch

from mla_contract.backends.sparse.workspace import LocalWorkspace
from mla_contract.errors import ContractError
from tests.backends.sparse.steps import REFERENCE, SMALL, arrays_of, step_batch
from tests.backends.whole import WholeCudaSparse


def test_forward_mqa_rows_with_few_positions_keep_the_padding() -> None:
    """Rows padded with -1 equal rows that have only their positions; other rows than q's are refused."""
    made = WholeCudaSparse(SMALL, LocalWorkspace(), providers=REFERENCE)
    made.profile()
    of = step_batch((1, 1), (3, 40))
    metadata, arrays = made.builder.build(of), arrays_of(of, SMALL)
    topk = torch.full((2, SMALL.topk_tokens), -1, dtype=torch.int32)
    topk[0, :3], topk[1, :40] = torch.arange(3, dtype=torch.int32), torch.arange(40, dtype=torch.int32)
    out = made.attention.forward_mqa(arrays.q, arrays.kv_cache, topk, metadata)
    first = int(of.block_table_tensor[0, 0]) * SMALL.block_size
    kv = arrays.kv_cache[first : first + 3]
    weights = torch.softmax(arrays.q[0] @ kv.T * SMALL.softmax_scale, -1)
    torch.testing.assert_close(out[0], weights @ kv[:, : SMALL.value_width], atol=1e-5, rtol=1e-5)
    with pytest.raises(ContractError, match="MLA251"):
        made.attention.forward_mqa(arrays.q[:1], arrays.kv_cache, topk[:1], metadata)
