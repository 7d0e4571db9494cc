"""Where a vLLM lacks what the engine's classes are bound to, the message says so and names the first that has it."""

from __future__ import annotations

import sys

import pytest

from mla_contract.errors import InvalidContract

pytest.importorskip("vllm")

from mla_contract.backends.vllm import registration


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the bound modules imported anew."""
    for name in registration._BRIDGE:
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.usefixtures("fresh")
def test_missing_class_is_named_with_the_first_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in 0.29, where the module of the selection's buffer is not there; with it, the control, all is imported."""
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "vllm.model_executor.layers.attention.sparse_mla_attention", None)
        with pytest.raises(InvalidContract, match=r"sparse_mla_attention.*vLLM 0\.30\.0 is the first"):
            registration._import_bridge()
    registration._import_bridge()


def test_class_that_is_not_there_is_named() -> None:
    """A module or a name that does not exist is told as it was asked for."""
    with pytest.raises(InvalidContract, match="the attention backend no.such:Cls cannot be imported"):
        registration._impl_class("no.such.Cls")
    with pytest.raises(InvalidContract, match="mla_contract:Missing cannot be imported"):
        registration._impl_class("mla_contract.Missing")
