"""What a build may read: the host, and never the device."""

from __future__ import annotations

from typing import Any

from mla_contract.contract.clauses.clause import Breach, Found, clause
from mla_contract.contract.clauses.need import traced
from mla_contract.contract.step.context import StepContext

_SHOWN = 4
"""Places that are shown of the way to a read."""


@clause(
    "MLA394",
    "A build reads no device memory on the host.",
    needs=(traced("device_reads"),),
    incident="vllm-ascend#8914 vllm#36723",
    example="max_len = int(batch.seq_lens.max()) in build()",
    help="read the batch's host copies; compute on the device what the device is to know",
)
def check_device_reads(step: StepContext) -> Found:
    """Check what was read while the record was built."""
    reads: Any = step.trace.device_reads
    return tuple(
        Breach(
            f"{step.name}: {one.places[0] if one.places else 'build'}",
            f"{one.what} reads device memory: the host waits for everything that was launched before",
            "no read in build()",
            f"{one.what}, called from {', '.join(one.places[1:_SHOWN]) or 'the suite'}",
        )
        for one in reads
    )
