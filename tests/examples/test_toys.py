"""The pages "add a backend" and "add a provider", followed: the toys do what the pages promise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from examples.toy_backend.backend import Target, ToyMetadata, toy
from examples.toy_provider.provider import ToyProvider
from mla_contract.backends.kernels import registry
from mla_contract.backends.kernels.reference import ReferenceProvider
from mla_contract.contract.schema.provider import MapSlots, TopkRows
from mla_contract.errors import NoProvider
from mla_contract.testing.conformance import CHECKS, run_check
from mla_contract.testing.corpus import conformance_batches
from tests.contract.mypy_runs import ROOT, run_mypy

PAGES = {"add-a-backend.md": "examples/toy_backend", "add-a-provider.md": "examples/toy_provider"}


@pytest.mark.parametrize("check", CHECKS)
def test_toy_backend_conformance_holds_on_every_batch(check: str) -> None:
    """The toy passes every check of the suite on the whole corpus."""
    for name, spec in conformance_batches().items():
        assert [one.render() for one in run_check(check, toy, spec).violations] == [], name


def test_toy_backend_with_a_wrong_count_is_found() -> None:
    """The suite is not vacuous: a toy that forgets its last decode token fails it."""

    def faulty() -> Target:
        good = toy()

        def build(batch: object) -> ToyMetadata:
            record = good.build(batch)
            record.num_decode_tokens -= 1
            return record

        return Target(build)

    spec = next(iter(conformance_batches().values()))
    assert run_check("clauses", faulty, spec).violations


@pytest.mark.slow
def test_toys_pass_strict_mypy(tmp_path: Path) -> None:
    """The claims below the toy's record hold, and so does the provider's Protocol."""
    files = [ROOT / folder / f"{folder.rpartition('_')[2]}.py" for folder in PAGES.values()]
    found, output = run_mypy(files, "--strict", cwd=tmp_path)
    assert found == [], output


def test_toy_provider_equals_reference_and_refuses_the_rest() -> None:
    """The registry takes the toy for what it can do, names its reason for what it cannot, and results agree."""
    generator = torch.Generator().manual_seed(0)
    table = torch.randint(-1, 50, (3, 4), generator=generator, dtype=torch.int32)
    positions = torch.randint(-1, 80, (9, 16), generator=generator, dtype=torch.int32)
    owners = torch.randint(0, 3, (9,), generator=generator, dtype=torch.int32)
    results = []
    for provider in (ToyProvider(), ReferenceProvider()):
        out = torch.empty(9, 16, dtype=torch.int32)
        inputs = MapSlots(positions=positions, req_id_per_token=owners, block_table=table, block_size=16, out=out)
        registry.run(inputs, [provider])
        results.append(out)
    assert torch.equal(*results)
    scores, ends = torch.zeros(1, 256), torch.ones(1, dtype=torch.int32)
    topk = TopkRows(logits=scores, starts=None, ends=ends, topk=1, out=torch.zeros(1, 1, dtype=torch.int32))
    with pytest.raises(NoProvider, match="the toy maps slots only"):
        registry.run(topk, [ToyProvider()])


@pytest.mark.parametrize("page", PAGES)
def test_page_names_only_what_exists(page: str) -> None:
    """Every path that a page names is there, the toy among them, and its steps are numbered without gap."""
    text = (ROOT / "docs" / page).read_text()
    paths = set(re.findall(r"`((?:mla_contract|examples|tests|docs)/[\w/.-]+)`", text))
    assert PAGES[page] in {path.rstrip("/") for path in paths}
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []
    steps = [int(number) for number in re.findall(r"^## (\d+)\. ", text, re.MULTILINE)]
    assert steps == list(range(1, len(steps) + 1)) and len(steps) >= 4
