"""The pages "add a backend" and "add a provider", followed to the letter: what their blocks make does what they say."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from mla_contract.backends.entry_points import load_value
from mla_contract.backends.kernels import registry
from mla_contract.backends.registry import RegisteredBackend
from mla_contract.contract.schema.provider import MapSlots, TopkRows
from mla_contract.errors import NoProvider
from mla_contract.testing.conformance import CHECKS, run_check
from mla_contract.testing.corpus import conformance_batches
from tests.contract.mypy_runs import ROOT, run_mypy
from tests.examples.pages import BACKEND, PAGES, PROVIDER, Page


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Write both packages from their pages, and have them on the path."""
    folders = {page.name: page.write(tmp_path_factory.mktemp("page")) for page in PAGES}
    sys.path[:0] = map(str, folders.values())
    yield folders
    for folder in folders.values():
        sys.path.remove(str(folder))
    for name in [name for name in sys.modules if name.partition(".")[0] in ("toy_backend", "toy_provider")]:
        del sys.modules[name]


@pytest.fixture
def toy(written: dict[str, Path]) -> Any:
    """Return the factory of the backend's target, as its registration names it."""
    (value,) = BACKEND.entries.values()
    found = load_value(value)
    assert isinstance(found, RegisteredBackend) and {found.name} == set(BACKEND.entries)
    return load_value(found.target)


@pytest.fixture
def provider(written: dict[str, Path]) -> Any:
    """Return the provider, as its registration names it."""
    ((name, value),) = PROVIDER.entries.items()
    factory = load_value(value)
    assert not isinstance(factory, str), factory
    made = factory()
    assert made.name == name
    return made


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_and_example_are_one_package(page: Page) -> None:
    """The example has the files of the page and no other, line by line; blank lines aside."""
    example = {
        str(path.relative_to(ROOT / page.example)): path.read_text("utf-8")
        for path in (ROOT / page.example).rglob("*")
        if path.suffix in (".py", ".toml")
    }
    assert example.keys() == page.files.keys()
    for name, text in page.files.items():
        assert [line for line in text.splitlines() if line] == [line for line in example[name].splitlines() if line]


@pytest.mark.parametrize("check", CHECKS)
def test_toy_backend_conformance_holds_on_every_batch(check: str, toy: Any) -> None:
    """The toy passes every check of the suite on the whole corpus."""
    for name, spec in conformance_batches().items():
        assert [one.render() for one in run_check(check, toy, spec).violations] == [], name


def test_toy_backend_with_a_wrong_count_is_found(toy: Any) -> None:
    """The suite is not vacuous: a toy that forgets its last decode token fails it."""

    def faulty() -> Any:
        good = toy()

        def build(batch: object) -> Any:
            record = good.build(batch)
            record.num_decode_tokens -= 1
            return record

        return type(good)(build)

    spec = next(iter(conformance_batches().values()))
    assert run_check("clauses", faulty, spec).violations
    assert run_check("clauses", toy, spec).violations == ()


@pytest.mark.slow
def test_pages_pass_strict_mypy_and_a_forgotten_count_does_not(written: dict[str, Path], tmp_path: Path) -> None:
    """The claims hold, and so does the provider's Protocol; without one count, mypy says which the record has not."""
    files = [written[page.name] / name for page in PAGES for name in page.files if name.endswith(".py")]
    faulty = tmp_path / "faulty.py"
    faulty.write_text(BACKEND.files["toy_backend/backend.py"].replace("    num_prefills: int\n", ""), "utf-8")
    found, output = run_mypy([*files, faulty], "--strict", cwd=tmp_path, sources=(ROOT, *written.values()))
    assert {Path(one.path).name for one in found} == {"faulty.py"}, output
    assert any('incompatible type "*tuple[ToyMetadata, ...]"; expected "HasNumPrefills"' in one.text for one in found)


def test_toy_provider_equals_reference_and_refuses_the_rest(
    provider: Any, written: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page's comparison agrees with the reference, and with a provider that is wrong it does not."""
    monkeypatch.setattr(registry, "provider_order", lambda: ("toy",))
    script = str(written[PROVIDER.name] / "compare.py")
    monkeypatch.setattr(registry, "load_provider", lambda name: provider)
    runpy.run_path(script)
    assert capsys.readouterr().out == "toy equals the reference\n"
    module = import_module("toy_provider.provider")
    monkeypatch.setattr(module, "_map", lambda inputs: inputs.out.zero_())
    with pytest.raises(SystemExit, match="the results differ"):
        runpy.run_path(script)


def test_toy_provider_gives_a_reason_for_what_it_cannot_do(provider: Any) -> None:
    """Another operation and another device are refused by name; positions on the host are taken."""
    scores, ends = torch.zeros(1, 256), torch.ones(1, dtype=torch.int32)
    topk = TopkRows(logits=scores, starts=None, ends=ends, topk=1, out=torch.zeros(1, 1, dtype=torch.int32))
    with pytest.raises(NoProvider, match="the toy maps slots only"):
        registry.run(topk, [provider])
    row = torch.zeros(1, 1, dtype=torch.int32)
    here = MapSlots(positions=row, req_id_per_token=row[0], block_table=row, block_size=1, out=row.clone())
    away = MapSlots(positions=row.to("meta"), req_id_per_token=row[0], block_table=row, block_size=1, out=row)
    assert provider.reason(here) is None
    assert provider.reason(away) == "positions are on meta: NumPy reads host memory only"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_names_only_what_exists(page: Page) -> None:
    """Every path that a page names is there, the toy among them, and its steps are numbered without gap."""
    paths = set(re.findall(r"`((?:mla_contract|examples|tests|docs)/[\w/.-]+)`", page.text))
    assert page.example in {path.rstrip("/") for path in paths}
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []
    steps = [int(number) for number in re.findall(r"^## (\d+)\. ", page.text, re.MULTILINE)]
    assert steps == list(range(1, len(steps) + 1)) and len(steps) >= 4


def test_page_says_the_order_in_which_providers_are_tried() -> None:
    """The order in the text is the registry's."""
    order = registry.DEFAULT_ORDER
    words = ["those of other packages by name" if name == registry.OTHERS else f"`{name}`" for name in order]
    assert f"tried in this order: {', '.join(words)}" in PROVIDER.text.replace("\n", " ")
