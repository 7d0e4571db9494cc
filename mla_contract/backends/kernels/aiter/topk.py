"""Top-k through aiter: absolute columns become positions in the row's window."""

from __future__ import annotations

import torch

from mla_contract.backends.kernels.aiter.binding import AiterCall, has_parameter
from mla_contract.contract.schema.provider import TopkRows

MODULES = ("aiter.ops.topk", "aiter")
FIXED_TOPK = 2048
"""What releases without the parameter ``k`` select."""


def topk_call(inputs: TopkRows) -> AiterCall | str:
    """Return the call that selects columns, or why there is none."""
    rows, topk = inputs.logits.shape[0], inputs.topk
    reason = _array_reason(inputs)
    if reason is not None:
        return reason
    decode = inputs.starts is None
    name = "top_k_per_row_decode" if decode else "top_k_per_row_prefill"
    required: dict[str, object] = {
        "logits": inputs.logits,
        "indices": inputs.out,
        "numRows": rows,
        "stride0": inputs.logits.stride(0),
        "stride1": 1,
    }
    if decode:
        required |= {"next_n": 1, "seqLens": inputs.ends}
    else:
        required |= {"rowStarts": inputs.starts, "rowEnds": inputs.ends, "values": None}
    # Without k the count is fixed, and long rows of a window that does not begin at 0 were based differently.
    if not decode or topk != FIXED_TOPK or has_parameter(name, MODULES, "k"):
        required["k"] = topk
    if inputs.stable:
        required["stable"] = True
    return AiterCall(name, MODULES, required)


def to_positions(inputs: TopkRows) -> None:
    """Turn absolute columns into positions, in place; -1 stays -1."""
    if inputs.starts is not None:
        inputs.out.sub_(inputs.starts[:, None]).clamp_(min=-1)


def _array_reason(inputs: TopkRows) -> str | None:
    """Return why the kernel would misread an array; it checks none."""
    if inputs.logits.dtype is not torch.float32 or inputs.logits.stride(1) != 1:
        return f"logits are {inputs.logits.dtype} with strides {inputs.logits.stride()}: aiter reads dense float32 rows"
    if tuple(inputs.out.shape) != (inputs.logits.shape[0], inputs.topk) or not inputs.out.is_contiguous():
        return f"out has strides {inputs.out.stride()}: aiter writes rows of exactly topk={inputs.topk} elements"
    for name, array in (("starts", inputs.starts), ("ends", inputs.ends), ("out", inputs.out)):
        if array is not None and (array.dtype is not torch.int32 or not array.is_contiguous()):
            return f"{name} is {array.dtype}: aiter reads contiguous int32 without a check"
    return None
