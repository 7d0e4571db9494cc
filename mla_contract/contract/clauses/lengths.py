"""The common batch, as far as elements of device arrays decide it: lengths and copies."""

from __future__ import annotations

import numpy as np

from mla_contract.contract.clauses.clause import FINE, Breach, Found, clause
from mla_contract.contract.clauses.need import BATCH, DCP, PCP, START_LOC, UPPER_LENS, WHOLE_QUERIES, Need, fact
from mla_contract.contract.clauses.owners import equal
from mla_contract.contract.step.context import StepContext, largest, smallest
from mla_contract.contract.step.host import host, host_ints

LOCAL_LENS = Need("batch.dcp_local_seq_lens", lambda step: getattr(step.batch, "dcp_local_seq_lens", None) is not None)
POSITIONS = Need("batch.positions", lambda step: getattr(step.batch, "positions", None) is not None)


@clause(
    "MLA211",
    "Host and device query offsets are equal, unless the backend declares that only their totals are.",
    level="values",
    needs=(START_LOC,),
    incident="sglang#15429",
    example="extend lens cpu=[4,4], device=[2,3]",
    help="copy the offsets after the last change of the host array",
)
def check_copies_agree(step: StepContext) -> Found:
    """Check the two copies of the query offsets."""
    device, copy = step.device_start_loc, step.start_loc
    path = f"{step.batch_name}.query_start_loc"
    if not step.facts.device_lens_differ:
        if equal(device, copy):
            return FINE
        row = int(np.argmax(device != copy))
        return (Breach(path, "differs from its host copy", f"{copy[row]} at entry {row}", str(device[row])),)
    if device[-1] != copy[-1]:
        return (Breach(path, "total differs from that of the host copy", str(copy[-1]), str(device[-1])),)
    longest = int(np.diff(device).max(initial=0))
    if longest <= step.batch.max_query_len:
        return FINE
    got = str(step.batch.max_query_len)
    return (Breach(f"{step.batch_name}.max_query_len", "a device query is longer", f"at least {longest}", got),)


@clause(
    "MLA212",
    "Device lengths: a live request has 1 <= query <= sequence, a padding request has sequence 0.",
    level="values",
    needs=(BATCH, WHOLE_QUERIES),
    incident="vllm#51593 ATOM#2044",
    example="q=[1,0], s=[9,7]",
    help="zero the tail of seq_lens at every step",
)
def check_device_lens(step: StepContext) -> Found:
    """Check sequence lengths against query lengths on the device."""
    lens, queries = step.seq_lens, step.device_query_lens
    if smallest(queries) > 0 and smallest(lens - queries) >= 0:
        return FINE
    stale = (lens < 0) | ((queries == 0) & (lens != 0)) | ((lens > 0) & (lens < queries))
    if not stale.any():
        return FINE
    row = int(np.argmax(stale))
    wanted = "0 for a padding request" if queries[row] == 0 else f"0, or at least {queries[row]}"
    got = f"{lens[row]} for request {row} with {queries[row]} query tokens"
    return (Breach(f"{step.batch_name}.seq_lens", "length does not fit the query", wanted, got),)


@clause(
    "MLA213",
    "max_seq_len bounds every sequence.",
    level="values",
    needs=(BATCH,),
    incident="vllm#43991",
    example="s=[10], max_seq_len=8",
    help="take the maximum after the last change of the lengths",
)
def check_max_seq_len_bounds(step: StepContext) -> Found:
    """Check the stated longest sequence against the device."""
    longest = largest(step.seq_lens)
    if longest <= step.batch.max_seq_len:
        return FINE
    path = f"{step.batch_name}.max_seq_len"
    return (Breach(path, "a sequence is longer", f"at least {longest}", str(step.batch.max_seq_len)),)


@clause(
    "MLA214",
    "Host bounds cover the device lengths, are exact on prefills and 0 on padding.",
    level="values",
    needs=(UPPER_LENS,),
    incident="vllm#44492",
    example="s=[9,5], bound=[9,4]",
    help="refresh the bound together with seq_lens",
)
def check_upper_bounds_lens(step: StepContext) -> Found:
    """Check the host bound against the device lengths."""
    upper = step.upper_lens
    lens = step.seq_lens
    if equal(upper, lens):
        return FINE
    path = f"{step.batch_name}.seq_lens_cpu_upper_bound"
    low = np.flatnonzero(upper < lens)
    if len(low):
        row = int(low[0])
        return (Breach(path, "bound is below the length", f"at least {lens[row]} for request {row}", str(upper[row])),)
    exact = step.device_query_lens == 0
    if step.is_prefilling is not None:
        exact = exact | step.flags
    loose = np.flatnonzero(exact & (upper != lens))
    if not len(loose):
        return FINE
    row = int(loose[0])
    return (Breach(path, "bound is not exact", f"{lens[row]} for request {row}", str(upper[row])),)


@clause(
    "MLA215",
    "A dummy step stores nothing and sees no position of an earlier step.",
    level="values",
    needs=(BATCH, fact("dummy")),
    incident="vllm-ascend#17170 ATOM#2044",
    example="dummy s=[1], positions=[116], or live slots",
    help="reset slots to -1 and positions to 0 in the dummy batch",
)
def check_dummy_step(step: StepContext) -> Found:
    """Check slots and positions of a dummy batch."""
    if not step.facts.dummy:
        return FINE
    name = step.batch_name
    slots = step.slots
    if (slots >= 0).any():
        token = int(np.argmax(slots >= 0))
        return (Breach(f"{name}.slot_mapping", "a dummy step stores", "-1 throughout", f"{slots[token]} at {token}"),)
    if step.batch.positions is None:
        return FINE
    positions = host_ints(step.batch.positions)
    owner = np.repeat(np.arange(len(step.seq_lens)), step.device_query_lens)
    late = positions[: len(owner)] >= np.maximum(step.seq_lens[owner], 1)
    if not late.any():
        return FINE
    token = int(np.argmax(late))
    got = f"{positions[token]} at token {token}"
    wanted = f"below {max(int(step.seq_lens[owner[token]]), 1)}"
    return (Breach(f"{name}.positions", "a dummy token sees positions of an earlier step", wanted, got),)


@clause(
    "MLA216",
    "Under round-robin prefill context parallelism a local row stands at its global position.",
    level="values",
    needs=(BATCH, PCP, POSITIONS),
    incident="sglang#27276",
    example="cp 2, rank 0 rows {0,2,4}: position of local row 1 is 2, not 1",
    help="compute positions from (rank, row), not from the local offset",
)
def check_round_robin_positions(step: StepContext) -> Found:
    """Check that consecutive local rows are as many positions apart as there are ranks."""
    size = step.facts.pcp_size
    positions = getattr(step.batch, "positions", None)
    values = host(positions)
    owner = np.repeat(np.arange(len(step.seq_lens)), step.device_query_lens)
    if len(values) < 2 or len(owner) < 2:
        return FINE
    wrong = (np.diff(values[: len(owner)]) != size) & (owner[1:] == owner[:-1])
    if not wrong.any():
        return FINE
    token = int(np.argmax(wrong)) + 1
    wanted = f"{values[token - 1] + size} at local row {token}"
    return (Breach(f"{step.batch_name}.positions", "position is not the global one", wanted, str(values[token])),)


@clause(
    "MLA217",
    "The position of a stored token is its context and its place in the query.",
    level="values",
    needs=(BATCH, POSITIONS, WHOLE_QUERIES),
    incident="vllm#48261 ATOM#2044",
    example="q=[2], s=[9], positions=[7,7]",
    help="compute positions from the lengths of this step",
)
def check_positions(step: StepContext) -> Found:
    """Check the positions of tokens with a slot outside the null block: captures and dummies leave stale ones."""
    positions, slots = host_ints(step.batch.positions), step.slots
    wanted = step.places[: min(len(positions), len(slots))]
    stored = slots[: len(wanted)] >= (step.facts.slot_span or step.facts.kernel_block_size or 1)
    wrong = np.flatnonzero(stored & (positions[: len(wanted)] != wanted))
    if not len(wrong):
        return FINE
    token = int(wrong[0])
    got = str(positions[token])
    return (Breach(f"{step.batch_name}.positions", "not the token's position", f"{wanted[token]} at {token}", got),)


@clause(
    "MLA218",
    "The local lengths of the batch are this rank's part of its lengths.",
    level="values",
    needs=(BATCH, DCP, LOCAL_LENS),
    incident="vllm#28990 vllm#50095",
    example="dcp 2, rank 1, s=[9]: local 5 instead of 4",
    help="localise the lengths of this step, with this rank and the interleave of the cache",
)
def check_local_lens(step: StepContext) -> Found:
    """Check ``dcp_local_seq_lens``; where drafts are verified they may be parts of the bounds.

    Source: vLLM 0.32.0 v1/worker/gpu_model_runner.py localises the host's optimistic lengths.
    """
    own = host_ints(step.batch.dcp_local_seq_lens)
    wanted = step.facts.local_lens(step.seq_lens)
    if equal(own, wanted) or own.shape != wanted.shape:
        return FINE
    bounds = wanted if step.upper_lens is None else step.facts.local_lens(step.upper_lens.astype(np.int64))
    wrong = np.flatnonzero((own != wanted) & (own != bounds))
    if not len(wrong):
        return FINE
    row = int(wrong[0])
    path = f"{step.batch_name}.dcp_local_seq_lens"
    return (Breach(path, "not this rank's part of the length", f"{wanted[row]} for request {row}", str(own[row])),)
