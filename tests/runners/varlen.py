"""The indexer's kernel for decodes of different lengths, told again in Python: the interpreter rejects its mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from vllm.v1.attention.ops import metadata


class VarlenKernel:
    """Stands in for ``_indexer_decode_metadata_kernel``: what it writes, by the same arguments."""

    def __getitem__(self, grid: object) -> Callable[..., None]:
        """Return the kernel for any grid."""
        return self.run

    def run(self, starts: Any, lens: Any, table: Any, out_lens: Any, out_table: Any, *more: Any, **sizes: Any) -> None:
        """Write a row for each decode token.

        Source: vLLM 0.32.0 v1/attention/ops/metadata.py, _indexer_decode_metadata_kernel.
        """
        decode_lens, owners, per_request, num_reqs, num_tokens = more[:5]
        columns, offsets = sizes["BLOCK_COLS"], starts[: num_reqs + 1].numpy()
        actual = int(offsets[num_reqs])
        decode_lens[:num_tokens] = 1
        out_lens[actual:] = 0
        out_table[actual:num_tokens, :columns] = 0
        for token in range(actual, num_tokens):
            owners[token] = num_reqs + token - actual
        for token in range(min(actual, num_tokens)):
            row = min(int(np.searchsorted(offsets[1:], token, side="right")), num_reqs - 1)
            out_lens[token] = int(lens[row]) - int(offsets[row + 1]) + token + 1
            owners[token] = row
            out_table[token, :columns] = table[row, :columns]
        per_request[:num_reqs] = starts[1 : num_reqs + 1] - starts[:num_reqs]


def install_varlen() -> None:
    """Put it in the kernel's place."""
    metadata._indexer_decode_metadata_kernel = VarlenKernel()
