"""The line about the chosen backend: in use, not used, and never in the way."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import pytest

from mla_contract.plugin.choice import announce_choice
from tests.plugin.engine_double import DenseBackend, MLAAttentionSpec, PlainBackend, SparseBackend, new_engine

CHOSEN = f"{SparseBackend.__module__}.SparseBackend"


@dataclass
class Model:
    """What is asked of a model's configuration."""

    use_mla: bool


@dataclass
class Config:
    """A VllmConfig."""

    model_config: Model


class Mute:
    """A backend that cannot be asked."""

    @classmethod
    def is_mla(cls) -> bool:
        """Raise."""
        raise RuntimeError


@pytest.mark.parametrize(
    ("backends", "use_mla", "said"),
    [
        ([SparseBackend, PlainBackend, SparseBackend], True, [f"attention backend in use: mine, {CHOSEN}"]),
        ([DenseBackend], True, ["MLA_CONTRACT_BACKEND=mine was not used: the engine gave MLA layers"]),
        ([PlainBackend], False, ["MLA_CONTRACT_BACKEND=mine was not used: the model has no MLA layers"]),
        ([PlainBackend], True, []),
        ([Mute], True, []),
    ],
)
def test_announced_choice_is_said_once(
    backends: list[Any], use_mla: bool, said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Groups of layers make their builders, and the log has one line for all; an indexer's group has none."""
    caplog.set_level(logging.INFO, "mla_contract")
    group = new_engine().group
    announce_choice("mine", CHOSEN, group)
    announce_choice("mine", CHOSEN, group)
    assert caplog.messages == []
    for backend in backends:
        made = group(backend, MLAAttentionSpec())
        made.create_metadata_builders(Config(Model(use_mla)))
        assert len(made.metadata_builders) == 1
    assert len(caplog.messages) == len(said)
    assert all(got.startswith(f"mla-contract: {text}") for got, text in zip(caplog.messages, said, strict=True))
