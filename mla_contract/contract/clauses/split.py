"""Order of requests, and the split between decode and prefill. Sums are demanded; equality with one split is not."""

from __future__ import annotations

import numpy as np

from mla_contract.contract.clauses.clause import FINE, Breach, Found, clause
from mla_contract.contract.clauses.need import CONTEXT_LENS, COUNTS, DECODES, SHARED_SPLIT, SPLIT, START_LOC, Need, fact
from mla_contract.contract.step.context import StepContext

PADDING_IS_DECODE = Need(
    "a release that counts padding as decodes",
    lambda step: (
        not step.facts.padding_may_prefill
        or step.facts.uniform_decodes is False
        or bool(step.known.short_extends_are_decodes)
    ),
    settled=True,
)


PLAIN_DECODES_LEAD = Need(
    "a decode threshold that covers verified drafts",
    lambda step: (
        step.facts.decode_threshold is not None
        and step.facts.next_n is not None
        and step.facts.decode_threshold >= step.facts.next_n
    ),
    settled=True,
)


@clause(
    "MLA231",
    "Plain decodes lead: behind a longer request, none has one token and a context, but a prompt; padding is last.",
    needs=(CONTEXT_LENS, PLAIN_DECODES_LEAD),
    incident="vllm#47381 vllm#47239",
    example="q=[30,1], s=[60,70], thr=1",
    help="sort decodes to the front before building; builders take all behind the first prefill for prefills",
)
def check_order(step: StepContext) -> Found:
    """Check that decodes stand before what is longer than a decode.

    More is not demanded: runners sort longer requests in different orders, and where several groups of layers have
    thresholds of their own, by the smallest of them. A prompt may have one token left behind others: a micro-batch ends
    wherever its tokens do.

    Source: vLLM 0.32.0 v1/attention/backends/utils.py, reorder_batch_to_split_decodes_and_prefills;
        v1/worker/gpu/model_runner.py, sort_batch_req_ids.
    """
    threshold, lens = step.known.decode_threshold, step.query_lens
    if step.max_query_len <= threshold and step.min_query_len > 0:
        return FINE
    path = f"{step.batch_name}.query_start_loc_cpu"
    if step.min_query_len <= 0:
        live = lens > 0
        last = int(np.flatnonzero(live)[-1]) + 1 if live.any() else 0
        if not live[:last].all():
            row = int(np.argmin(live))
            return (Breach(path, "a padding request stands before a live one", "padding last", f"request {row}"),)
    long = lens > threshold
    if not long.any():
        return FINE
    first = int(long.argmax())
    late = np.flatnonzero((lens[first:] == 1) & ~step.fresh[first:])
    if not len(late):
        return FINE
    got = f"request {first} has {lens[first]} tokens, request {first + late[0]} has 1 and a context"
    axes = {"decode_threshold": threshold}
    return (Breach(path, "a decode stands behind a prefill", "requests of one token first", got, axes),)


@clause(
    "MLA232",
    "Decodes and prefills sum to the requests, and their tokens to the tokens.",
    needs=(COUNTS,),
    incident="vllm#29644 vllm#50064",
    example="q=[4,4,4,0,0], ND=3, NP=1",
    help="set every count in build(); an inherited default of 0 is not a count",
)
def check_sums(step: StepContext) -> Found:
    """Check the counts of the metadata among themselves."""
    decodes, prefills, tokens = step.num_decodes, step.num_prefills, step.num_decode_tokens
    reqs, total = step.num_reqs, step.num_tokens
    if reqs is not None and decodes + prefills != reqs:
        axes = {"num_decodes": decodes, "num_prefills": prefills}
        got = f"{decodes} + {prefills} = {decodes + prefills}"
        return (Breach(f"{step.name}.num_prefills", "requests do not sum up", f"num_reqs={reqs}", got, axes),)
    if total is None:
        return FINE
    axes = {"num_actual_tokens": total, "num_decodes": decodes, "num_prefills": prefills}
    wanted = 0 if decodes == 0 else total if prefills == 0 else None
    if (wanted is not None and tokens != wanted) or tokens > total:
        text = str(wanted) if wanted is not None else f"at most {total}"
        return (Breach(f"{step.name}.num_decode_tokens", "tokens do not sum up", text, str(tokens), axes),)
    return FINE


@clause(
    "MLA233",
    "The decode tokens are the query tokens of the leading decode requests.",
    needs=(COUNTS, START_LOC),
    incident="vllm#48611 vllm#34187",
    example="q=[1,5], ND=1, NDT=2",
    help="take num_decode_tokens from query_start_loc_cpu[num_decodes]",
)
def check_decode_tokens(step: StepContext) -> Found:
    """Check the boundary in tokens against the boundary in requests."""
    decodes, tokens, start_loc = step.num_decodes, step.num_decode_tokens, step.start_loc
    if decodes >= len(start_loc) or int(start_loc[decodes]) == tokens:
        return FINE
    if not step.num_prefills and tokens == step.num_tokens:
        return FINE  # all requests are decodes, and so are the tokens that pad the batch
    wanted = f"{start_loc[decodes]}   (query_start_loc_cpu[num_decodes={decodes}])"
    path = f"{step.name}.num_decode_tokens"
    return (Breach(path, "not the tokens of the decode requests", wanted, str(tokens), {"num_decodes": decodes}),)


@clause(
    "MLA234",
    "No decode is longer than the threshold; with uniform decodes all have one length, or none.",
    needs=(DECODES, START_LOC, fact("decode_threshold"), SPLIT),
    incident="vllm#47381 vllm#39277",
    example="q=[1,8], thr=4, ND=2",
    help="split after sorting, with the threshold that the kernel was built for",
)
def check_decode_lens(step: StepContext) -> Found:
    """Check the query lengths of the decodes."""
    threshold, decodes, lens = step.known.decode_threshold, step.num_decodes, step.query_lens
    if step.max_decode_query_len <= threshold and not step.facts.uniform_decodes:
        return FINE
    own = lens[:decodes]
    if not len(own):
        return FINE
    longest = step.max_decode_query_len
    axes = {"num_decodes": decodes, "decode_threshold": threshold}
    if longest > threshold:
        row = int(np.argmax(own > threshold))
        got = f"{own[row]} for request {row}"
        return (Breach(f"{step.name}.num_decodes", "a decode is too long", f"at most {threshold}", got, axes),)
    if step.facts.uniform_decodes:
        odd = np.flatnonzero((own != own[0]) & (own != 0))
        if len(odd):
            got = f"{own[odd[0]]} for request {odd[0]}"
            return (Breach(f"{step.name}.num_decodes", "decodes are not uniform", f"{own[0]} or 0", got, axes),)
    return FINE


@clause(
    "MLA235",
    "No piece of a prompt is among the decodes, unless the backend declares short extends equal to decodes.",
    needs=(DECODES, CONTEXT_LENS, fact("short_extends_are_decodes")),
    incident="vllm-ascend#6835 vllm-ascend#5583 vllm#32716 vllm#53059",
    example="q=[4], s=[4], computed=[0], K=3, thr=4, ND=1",
    help="classify by context and prefilling flag, not by length alone",
)
def check_no_prompt_in_decodes(step: StepContext) -> Found:
    """Check that decodes have context and do not prefill."""
    allowed, decodes = step.known.short_extends_are_decodes, step.num_decodes
    if allowed or step.all_decodes or step.facts.dummy or step.facts.capturing:
        return FINE
    wrong = np.flatnonzero(step.fresh[:decodes])
    if not len(wrong):
        return FINE
    got = f"request {wrong[0]}"
    return (Breach(f"{step.name}.num_decodes", "a piece of a prompt is a decode", "requests with context", got),)


@clause(
    "MLA236",
    "A padding request never starts the prefill region.",
    needs=(COUNTS, START_LOC, PADDING_IS_DECODE),
    incident="vllm#29644",
    example="q=[4,4,4,0,0,0,0,0], thr=4, uniform: ND=3, NP=5",
    help="count padding requests as decodes",
)
def check_padding_is_decode(step: StepContext) -> Found:
    """Check the first prefill, unless the release's own split has padding start the prefills.

    Source: vLLM 0.30.0 v1/attention/backends/utils.py, split_decodes_and_prefills; 0.31.0 counts padding as decodes.
    """
    decodes, prefills, lens = step.num_decodes, step.num_prefills, step.query_lens
    if not prefills or decodes >= len(lens) or lens[decodes] > 0:
        return FINE
    got = f"request {decodes} has no query token"
    return (Breach(f"{step.name}.num_prefills", "padding starts the prefills", "a live request", got),)


@clause(
    "MLA237",
    "The shared split is maximal: the first prefill is not a decode. Demanded only of backends that declare it.",
    needs=(COUNTS, START_LOC, SHARED_SPLIT, fact("decode_threshold")),
    incident="vllm#47381",
    example="q=[1,1,5], thr=1, declared shared split, ND=1",
    help="use the shared split, or declare another routing",
)
def check_split_is_maximal(step: StepContext) -> Found:
    """Check that the first prefill could not have been a decode."""
    facts, decodes, prefills, lens = step.facts, step.num_decodes, step.num_prefills, step.query_lens
    if not prefills or decodes >= len(lens):
        return FINE
    row = int(lens[decodes])
    if row > step.known.decode_threshold or (facts.uniform_decodes and row != lens[0]):
        return FINE
    if not facts.short_extends_are_decodes and (step.context_lens is None or step.fresh[decodes]):
        return FINE
    axes = {"num_decodes": decodes, "decode_threshold": step.known.decode_threshold}
    got = f"request {decodes} with {row} tokens is a prefill"
    return (Breach(f"{step.name}.num_decodes", "a decode is routed as a prefill", "all leading decodes", got, axes),)
