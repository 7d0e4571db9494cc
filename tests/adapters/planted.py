"""A peer with a fault in each function, to show that the comparison would report it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.adapters.peers import Peer


def planted(peer: Peer) -> Peer:
    """Return the peer, wrong by one in each function, now and then."""

    def split(common: Any, *rule: Any) -> Any:
        decodes, prefills, *tokens = peer.split(common, *rule)
        return (decodes - 1, prefills + 1, *tokens) if decodes > 2 else (decodes, prefills, *tokens)

    def local(lens: Any, *sharing: Any) -> Any:
        return peer.local(lens + (lens > 9), *sharing)

    def indexer(states: Any, lens: Any, buffer: int, logits: int, offset: int) -> Any:
        return peer.indexer(states, lens, buffer // 2, logits // 2, offset)

    def context(**inputs: Any) -> Any:
        assert peer.context is not None
        lens = inputs["context_lens_cpu"]
        return peer.context(**{**inputs, "context_lens_cpu": lens + (lens > 9)})

    return replace(peer, split=split, local=local, indexer=indexer, context=context)
