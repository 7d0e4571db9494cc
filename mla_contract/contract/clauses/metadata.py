"""MLA metadata: which nested records there are, what the maxima say, and which objects it may share."""

from __future__ import annotations

from typing import Any

from mla_contract.contract.clauses.clause import FINE, Breach, Found, clause
from mla_contract.contract.clauses.need import (
    BATCH,
    COUNTS,
    DECODES,
    MLA,
    RECORD,
    SPARSE,
    SPLIT,
    START_LOC,
    Need,
    traced,
)
from mla_contract.contract.step.context import StepContext, largest, read
from mla_contract.contract.step.trace import addresses_of

DECODE_MEMBER = Need("metadata.decode as a member", lambda step: hasattr(step.metadata, "decode"), of=MLA)
STATED_PREFILL_MAX = Need(
    "metadata.prefill_max_seq_len",
    lambda step: type(getattr(step.metadata, "prefill_max_seq_len", None)) is int,
    of=SPARSE,
)
STATED_CAUSAL = Need("batch.causal as a flag", lambda step: isinstance(getattr(step.batch, "causal", None), bool))
STATED_DECODE_MAX = Need(
    "metadata.decode_max_query_len", lambda step: type(getattr(step.metadata, "decode_max_query_len", None)) is int
)
LONGEST_PREFILL = Need(
    "batch.seq_lens_cpu_upper_bound where there are prefills",
    lambda step: (
        not step.num_prefills or (step.upper_lens is not None and (step.num_decodes or 0) < len(step.upper_lens))
    ),
    where=lambda step: bool(step.num_prefills),
)


@clause(
    "MLA241",
    "A decode record is there exactly when there are decodes, a prefill record only when there are prefills.",
    needs=(MLA, COUNTS, DECODE_MEMBER),
    incident="vllm#14009 vllm#55757",
    example="dense, ND=2, decode=None",
    help="build each nested record from the counts, not from a flag",
)
def check_records_present(step: StepContext) -> Found:
    """Check the nested records of MLA metadata; sparse records may describe tokens themselves."""
    decodes, prefills = step.num_decodes, step.num_prefills
    if not prefills and step.prefill is not None:
        return (Breach(f"{step.name}.prefill", "a prefill record without prefills", "None", "a record"),)
    if not decodes and step.decode is not None:
        return (Breach(f"{step.name}.decode", "a decode record without decodes", "None", "a record"),)
    if step.is_sparse:
        return FINE
    if decodes and step.decode is None:
        return (Breach(f"{step.name}.decode", "decodes without a record", f"a record of {decodes}", "None"),)
    dense = step.declaration is None or step.declaration.dense_prefill
    if prefills and dense and step.prefill is None:
        return (Breach(f"{step.name}.prefill", "prefills without a record", f"a record of {prefills}", "None"),)
    return FINE


@clause(
    "MLA242",
    "prefill_max_seq_len is the longest prefill sequence; 0 without prefills, and at will where no record is built.",
    needs=(SPARSE, STATED_PREFILL_MAX, LONGEST_PREFILL),
    incident="vllm#47327 vllm#50064",
    example="NP=1, s=[900], prefill_max_seq_len=0",
    help="a forgotten 0 is below every top-k and always chooses dense prefill; set it in build()",
)
def check_prefill_max_seq_len(step: StepContext) -> Found:
    """Check the number that the layer compares with the top-k."""
    stated, decodes, upper = getattr(step.metadata, "prefill_max_seq_len", None), step.num_decodes, None
    path = f"{step.name}.prefill_max_seq_len"
    if not step.num_prefills:
        return FINE if stated == 0 else (Breach(path, "longest prefill without prefills", "0", str(stated)),)
    upper = step.upper_lens
    longest = largest(upper[decodes:])
    if stated == longest or (step.prefill is None and not stated):
        return FINE
    return (Breach(path, "not the longest prefill sequence", str(longest), str(stated), {"num_decodes": decodes}),)


@clause(
    "MLA243",
    "decode_max_query_len bounds the decode queries, and is no more than the batch allows any query.",
    needs=(DECODES, START_LOC, STATED_DECODE_MAX, SPLIT),
    incident="vllm#50064",
    example="q=[4], ND=1, decode_max_query_len=0",
    help="take the maximum over the decode requests",
)
def check_decode_max_query_len(step: StepContext) -> Found:
    """Check the stated longest decode query."""
    stated = step.metadata.decode_max_query_len
    longest, path = step.max_decode_query_len, f"{step.name}.decode_max_query_len"
    if stated < longest:
        return (Breach(path, "a decode query is longer", f"at least {longest}", str(stated)),)
    # Adaptive verification bounds what it asks of a request by a number of its own.
    allowed = max(read(step.batch, "max_query_len") or 0, read(step.batch, "max_logits_per_req") or 0)
    if stated <= allowed:
        return FINE
    return (Breach(path, "no query of the batch may be so long", f"at most {allowed}", str(stated)),)


@clause(
    "MLA244",
    "Counts, maxima and sizes that the metadata repeats are those of its batch and of the configuration.",
    needs=(BATCH, RECORD),
    incident="ATOM#2044 vllm#48261",
    example="metadata of the previous step: num_actual_tokens=4, batch 5",
    help="copy the counts from the batch that build() was given",
)
def check_batch_counts(step: StepContext) -> Found:
    """Check the numbers that metadata and batch both have."""
    found = []
    for name in ("num_reqs", "num_actual_tokens", "max_query_len", "max_seq_len"):
        own, given = getattr(step.metadata, name, None), getattr(step.batch, name, None)
        if own is not None and given is not None and own != given and not _is_local(step, name, own, given):
            found.append(Breach(f"{step.name}.{name}", "differs from the batch", str(given), str(own)))
    for name, configured in (("block_size", step.facts.kernel_block_size), ("topk_tokens", step.facts.topk_tokens)):
        own = getattr(step.metadata, name, None)
        if own is not None and configured is not None and own != configured:
            found.append(Breach(f"{step.name}.{name}", "differs from the configuration", str(configured), str(own)))
    return tuple(found)


def _is_local(step: StepContext, name: str, own: Any, given: Any) -> bool:
    """Return whether a maximum is the batch's, as far as one rank of context parallelism holds it.

    Source: vLLM 0.32.0 model_executor/layers/attention/mla_attention.py: the dense builder hands its decode kernel the
        longest local sequence, rounded up.
    """
    size = step.facts.dcp_size
    return name == "max_seq_len" and size > 1 and bool(own == step.facts.padded_rows(given))


@clause(
    "MLA245",
    "The indexer and the MLA metadata of one layer split the batch alike.",
    needs=(MLA, traced("indexer")),
    incident="vllm#52512 vllm#48642",
    example="MLA ND=1, indexer ND=2",
    help="split once for each batch and hand the result to both builders",
)
def check_indexer_agrees(step: StepContext) -> Found:
    """Check the counts of both records of a layer."""
    other = step.trace.indexer
    found = []
    for name in ("num_decodes", "num_decode_tokens", "num_prefills"):
        own, theirs = getattr(step.metadata, name), getattr(other, name)
        if own != theirs:
            path = f"{step.name}.{name}"
            found.append(Breach(path, "the indexer's record differs", f"{theirs} in {type(other).__name__}", str(own)))
    return tuple(found)


@clause(
    "MLA246",
    "Two metadata objects that are alive together share no mutable record.",
    needs=(traced("alive"),),
    incident="vllm#50945",
    example="two builds before any forward, one prefill record",
    help="make nested records anew in each build; share only declared buffers",
)
def check_nothing_shared(step: StepContext) -> Found:
    """Check the identity of nested records."""
    alive: Any = step.trace.alive
    found = []
    for path, record in _nested(step.metadata):
        for other in alive:
            if other is not step.metadata and any(record is theirs for _, theirs in _nested(other)):
                got = f"also reachable from another {type(other).__name__}"
                found.append(Breach(f"{step.name}.{path}", "a record is shared", "a record of its own", got))
    return tuple(found)


def _nested(metadata: Any) -> list[tuple[str, object]]:
    """Return the mutable records inside metadata."""
    found: list[tuple[str, object]] = []
    for name in ("decode", "prefill"):
        record = getattr(metadata, name, None)
        if record is not None:
            found.append((name, record))
            for inner in ("chunked_context", "chunks"):
                value = getattr(record, inner, None)
                if value is not None:
                    found.append((f"{name}.{inner}", value))
    return found


@clause(
    "MLA247",
    "A field that a captured graph reads has the same address, shape, strides and dtype at every replay.",
    needs=(traced("captured"),),
    incident="vllm#35175 vllm#33638 vllm#36611 vllm#56237",
    example="two builds, two data_ptr of one field",
    help="copy into the persistent buffer; do not return a new array",
)
def check_addresses(step: StepContext) -> Found:
    """Check the addresses of captured fields."""
    captured: Any = step.trace.captured
    now = addresses_of(step.metadata, tuple(captured))
    found = []
    for name, then in captured.items():
        if now.get(name) != then:
            got = str(now[name]) if name in now else "None"
            found.append(Breach(f"{step.name}.{name}", "not the captured array", str(then), got))
    return tuple(found)


@clause(
    "MLA248",
    "The builder returns the class that the impl is written for.",
    needs=(RECORD, traced("metadata_class")),
    incident="vllm#38145 vllm#31816",
    example="a subclass of a backend that inherits the common builder",
    help="override get_builder_cls together with the impl",
)
def check_class(step: StepContext) -> Found:
    """Check the class of the metadata."""
    wanted: Any = step.trace.metadata_class
    if isinstance(step.metadata, wanted):
        return FINE
    got = type(step.metadata).__name__
    return (Breach(step.name, "metadata of another class", wanted.__name__, got),)


@clause(
    "MLA249",
    "Dense prefill is used only where layer, impl, gather and top-k allow it; skipped top-k where nothing reads it.",
    needs=(SPARSE,),
    incident="vllm#52512 vllm#55757",
    example="q=[64], s=[64], topk skipped, use_dense_mha=False",
    help="decide dense prefill once, and let the indexer follow that decision",
)
def check_dense_prefill(step: StepContext) -> Found:
    """Check the decision for dense prefill."""
    facts, dense = step.facts, getattr(step.prefill, "use_dense_mha", None)
    path = f"{step.name}.prefill.use_dense_mha"
    if dense:
        impl = None if step.declaration is None else step.declaration.dense_prefill
        reasons = {
            "the layer never attends densely": facts.layer_allows_dense is False,
            "the backend declares no dense prefill": impl is False,
            "the gather does not understand the cache layout": facts.gather_reads_layout is False,
            "a prefill is longer than its top-k, so that selection matters": _selects(step),
        }
        denied = [reason for reason, holds in reasons.items() if holds]
        if denied:
            return (Breach(path, "dense prefill is not available", "False", f"True, but {'; '.join(denied)}"),)
    elif facts.topk_skipped and step.num_prefills:
        return (Breach(path, "sparse prefill reads a top-k that was skipped", "True, or scoring", str(dense)),)
    return FINE


def _selects(step: StepContext) -> bool:
    """Return whether any prefill has more keys than are selected; dense attention would read all of them."""
    lens = None if step.upper_lens is None else step.upper_lens[step.num_decodes :]
    return lens is not None and largest(lens) > step.metadata.topk_tokens


@clause(
    "MLA257",
    "A record repeats whether its batch is causal; one that does not say so is causal.",
    needs=(BATCH, RECORD, STATED_CAUSAL),
    incident="vllm#41662",
    example="batch.causal=False, a sparse record without a word of it",
    help="refuse non-causal batches in build(), or hand causal on to the kernel",
)
def check_causal(step: StepContext) -> Found:
    """Check the flag, where it is one for the whole batch."""
    given, own = step.batch.causal, getattr(step.metadata, "causal", True)
    if own is given or not isinstance(own, bool):
        return FINE
    path = f"{step.name}.causal" if hasattr(step.metadata, "causal") else f"{step.batch_name}.causal"
    return (
        Breach(
            path, "record and batch differ in causality", f"one of both, {own} in the record", f"{given} in the batch"
        ),
    )
