"""Selection of providers by order and environment, and what the error says."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mla_contract.backends.kernels import registry
from mla_contract.backends.kernels.reference import ReferenceProvider
from mla_contract.contract.schema.persistent_work import WorkConfig
from mla_contract.contract.schema.provider import SizeWork, TopkRows
from mla_contract.errors import NoProvider
from mla_contract.testing.aiter_double import install
from tests.backends.rocm_sparse.aiter_cases import inputs, provider


def topk() -> TopkRows:
    """Return a small selection."""
    ends = torch.tensor([3, 9]).int()
    return TopkRows(logits=torch.randn(2, 9), starts=None, ends=ends, topk=4, out=torch.zeros(2, 4, dtype=torch.int32))


def test_select_default_order_ends_with_the_reference_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine without a GPU the reference is what remains, and every other provider says why not."""
    monkeypatch.delenv(registry.ENVIRONMENT, raising=False)
    assert registry.select_provider(topk()).name == "reference"
    reasons = registry.reasons(topk())
    assert list(reasons) == ["aiter", "triton", "reference"]
    assert reasons["aiter"] and reasons["reference"] is None


def test_run_returns_what_the_provider_returns() -> None:
    """The registry runs the operation on the provider that it selects."""
    inputs = topk()
    registry.run(inputs, [ReferenceProvider()])
    assert inputs.out[0].tolist() == [0, 1, 2, -1]


def test_select_environment_excludes_what_it_does_not_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Naming aiter alone refuses rather than falling back; naming an order tries it."""
    monkeypatch.setenv(registry.ENVIRONMENT, "aiter")
    with pytest.raises(NoProvider) as caught:
        registry.select_provider(topk())
    assert list(caught.value.reasons) == ["aiter"]
    monkeypatch.setenv(registry.ENVIRONMENT, "aiter, reference")
    assert registry.select_provider(topk()).name == "reference"


def test_select_unknown_name_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that no provider has is reported with the known names."""
    monkeypatch.setenv(registry.ENVIRONMENT, "cuda")
    with pytest.raises(NoProvider, match="known are aiter, triton, reference"):
        registry.select_provider(topk())


def test_select_first_able_provider_wins() -> None:
    """The order decides between able providers, and an unable one is passed over."""
    with install("0.1.20", "gfx950"):
        aiter, reference = provider("gfx950"), ReferenceProvider()
        case = inputs(16)
        assert registry.select_provider(case, [aiter, reference]) is aiter
        assert registry.select_provider(case, [reference, aiter]) is reference
        float_out = replace(case, out=case.out.float())
        assert registry.select_provider(float_out, [aiter, reference]) is reference


def test_no_provider_lists_inputs_and_every_reason() -> None:
    """The error names the operation, each input and each provider's reason; it is never bare."""
    config = WorkConfig(num_rows=4, num_heads=16, q_dtype=torch.float16, kv_dtype=torch.float16)
    with install("0.1.20", "gfx942"), pytest.raises(NoProvider) as caught:
        registry.run(SizeWork(config=config), [provider("gfx942"), ReferenceProvider()])
    text = str(caught.value)
    assert "aiter  q float16 with kv float16: aiter has bfloat16/bfloat16" in text
    assert "reference  SizeWork: the reference needs no work plan" in text
    assert "operation=SizeWork" in text and "num_heads=16" in text and "torch.float16" in text


def test_reference_off_the_cpu_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """On another device the slow reference is not taken silently; naming it allows it."""
    away = replace(topk(), logits=torch.zeros(2, 9, device="meta"))
    monkeypatch.delenv(registry.ENVIRONMENT, raising=False)
    assert "only when MLA_CONTRACT_PROVIDER names it" in str(registry.reasons(away)["reference"])
    monkeypatch.setenv(registry.ENVIRONMENT, "reference")
    assert registry.reasons(away)["reference"] is None
