"""What is read of a builder: what its attributes say, and nothing where they say nothing."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest

from mla_contract.contract.step.facts import Facts
from mla_contract.plugin.facts import facts_of


class Support(Enum):
    """The words of vLLM's QueryLenSupport."""

    SINGLE_ONLY = "single_only"
    UNIFORM = "uniform"
    VARLEN = "varlen"


class Builder:
    """A builder with nothing but what a test gives it."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__ |= attributes


@pytest.mark.parametrize(
    ("attributes", "uniform"),
    [
        ({"query_len_support": Support.SINGLE_ONLY}, True),
        ({"query_len_support": Support.UNIFORM}, True),
        ({"query_len_support": Support.VARLEN}, False),
        ({"require_uniform_decodes": True}, True),
        ({"require_uniform_decodes": False}, False),
        ({"use_flattening": False, "supports_varlen": False}, True),
        ({"use_flattening": True, "supports_varlen": False}, False),
        ({"use_flattening": False}, None),
        ({"query_len_support": 3, "require_uniform_decodes": "yes"}, None),
        ({}, None),
    ],
)
def test_facts_of_builder_know_uniform_decodes_where_it_says_so(
    attributes: dict[str, Any], uniform: bool | None
) -> None:
    """The three ways in which vLLM's builders say it, and builders that do not."""
    assert facts_of(Builder(**attributes)).uniform_decodes is uniform


@pytest.mark.parametrize(("use_pcp", "shorts"), [(True, False), (False, True), (None, None), (0, None)])
def test_facts_of_builder_know_short_extends_by_its_flag(use_pcp: Any, shorts: bool | None) -> None:
    """Short pieces of prompts are decodes unless ranks shard the prompts."""
    assert facts_of(Builder(use_pcp=use_pcp)).short_extends_are_decodes is shorts


def test_facts_of_own_configuration_fill_what_vllm_does_not_tell() -> None:
    """A builder of ours knows more; what is read of vLLM's attributes stays."""
    own = Builder(facts=Facts(uniform_decodes=False, buffer_rows=7, kernel_block_size=8))
    found = facts_of(Builder(config=own, query_len_support=Support.UNIFORM))
    assert (found.uniform_decodes, found.buffer_rows, found.kernel_block_size) == (True, 7, None)
    assert facts_of(Builder(config=Builder(facts="many"))).buffer_rows is None
