"""One audit from options to report: trees, engine, rules, syntax, exceptions, baseline."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mla_contract.audit.aiter.sources import AiterSources
from mla_contract.audit.allow import apply_allows
from mla_contract.audit.baseline import apply_baseline, read_baseline, write_baseline
from mla_contract.audit.finding import Finding
from mla_contract.audit.model.index import module_name
from mla_contract.audit.output.json import finding_as_json, finding_from_json
from mla_contract.audit.output.report import Report
from mla_contract.audit.project import Project, open_project
from mla_contract.audit.rule import Rule
from mla_contract.audit.rules import RULES
from mla_contract.audit.select import Catalogue, selected_codes
from mla_contract.audit.source import AuditError, SourceProblem
from mla_contract.audit.source.acquire import Progress, fetch_release, installed_tree, release_of
from mla_contract.audit.source.cache import ResultCache, VerdictCache, cache_root, digest_of, own_digest
from mla_contract.audit.source.syntax import start_syntax_check
from mla_contract.audit.source.tree import SourceTree, open_tree, overlay
from mla_contract.audit.source.tree import open_plugin as open_plugin_tree
from mla_contract.audit.tool_rules import INTERNAL_ERROR, TOOL_RULES, UNREADABLE_SOURCE, tool_finding


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """What to audit, and what to report of it.

    Attributes:
        path: Tree, wheel or package directory; exactly one of path, release and installed is given.
        release: Release to fetch.
        installed: Whether to audit the vLLM of the running environment.
        plugins: Out-of-tree packages to audit with the tree.
        aiter: Checkout or installed package of aiter, or None.
        select: Words of the rules to report, all when empty.
        ignore: Words of the rules not to report.
        baseline: Baseline file, or None.
        write_baseline: Whether to write that file.
        use_cache: Whether to use results of earlier runs and keep this one.
        cache_dir: Root of the caches, instead of the user's.
        jobs: How many processes check the syntax.
    """

    path: Path | None = None
    release: str | None = None
    installed: bool = False
    plugins: tuple[Path, ...] = ()
    aiter: Path | None = None
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    baseline: Path | None = None
    write_baseline: bool = False
    use_cache: bool = True
    cache_dir: Path | None = None
    jobs: int = 2


@dataclass(slots=True)
class _RawResult:
    """Findings of the engine and the parser, before exceptions are taken away."""

    findings: list[Finding] = field(default_factory=list)
    failed: bool = False
    from_cache: bool = False


def catalogue() -> Catalogue:
    """Return all rules: those of the engine and those about the audit itself."""
    return Catalogue.of(RULES, TOOL_RULES)


def run_audit(options: AuditOptions, *, progress: Progress | None = None) -> Report:
    """Audit a tree.

    Args:
        options: What to do.
        progress: Told how a download goes.

    Raises:
        AuditError: The options contradict one another, or the tool cannot do its work at all.
    """
    everything = catalogue()
    codes = selected_codes(everything, options.select, options.ignore)
    if options.write_baseline and options.baseline is None:
        raise AuditError("--write-baseline needs a file", "name it with --baseline FILE")
    writes = options.write_baseline and options.baseline is not None
    entries = read_baseline(options.baseline) if options.baseline is not None and not writes else ()
    with _collector_off():
        tree = open_source(options, progress=progress)
        release = release_of(tree)
        if release is None and options.release is not None:
            release = options.release.removeprefix("v")
        result = _cached_result(options, tree, release)
        findings, allowed = apply_allows(result.findings, tree.files, everything)
    findings = [finding for finding in findings if finding.code in codes or finding.code == INTERNAL_ERROR.code]
    if options.baseline is not None:
        if writes and not result.failed:
            write_baseline(options.baseline, findings, codes)
        if writes and options.baseline.exists():
            entries = read_baseline(options.baseline)
        findings, known = apply_baseline(findings, entries, codes, options.baseline)
        findings = [finding for finding in findings if finding.code in codes or finding.code == INTERNAL_ERROR.code]
    else:
        known = 0
    return Report(
        findings=tuple(sorted(findings, key=Finding.sort_key)),
        tree=tree.label,
        release=release,
        files=len(tree.files),
        allowed=allowed,
        baselined=known,
        failed=result.failed,
        from_cache=result.from_cache,
    )


def open_source(options: AuditOptions, *, progress: Progress | None = None) -> SourceTree:
    """Open the tree that the options name, with its plugins.

    Raises:
        AuditError: Not exactly one tree is named, or it or the aiter to bind against cannot be opened.
    """
    given = [options.path is not None, options.release is not None, options.installed]
    if sum(given) != 1:
        got = "none of them" if not any(given) else "more than one"
        raise AuditError("name one tree to audit", "see mla-contract audit --help", expected=_SOURCES, got=got)
    if options.aiter is not None:
        AiterSources(options.aiter)
    if options.path is not None:
        tree = open_tree(options.path)
    elif options.release is not None:
        tree = open_tree(fetch_release(options.release, cache=options.cache_dir, progress=progress))
    else:
        tree = installed_tree()
    return overlay(tree, *(open_plugin_tree(path) for path in options.plugins))


_SOURCES = "one of PATH, --release X.Y.Z, --installed"


def _cached_result(options: AuditOptions, tree: SourceTree, release: str | None) -> _RawResult:
    if not options.use_cache:
        return _fresh_result(options, tree, release, None)
    root = cache_root(options.cache_dir)
    results = ResultCache(root)
    key = _key(options, tree, release)
    if (payload := results.get(key)) is not None:
        try:
            return _RawResult([finding_from_json(item) for item in payload], from_cache=True)
        except (KeyError, TypeError, ValueError):
            pass  # an entry of another shape counts as absent
    result = _fresh_result(options, tree, release, VerdictCache(root))
    if not result.failed:
        results.put(key, [finding_as_json(finding) for finding in result.findings])
    return result


def _key(options: AuditOptions, tree: SourceTree, release: str | None) -> str:
    parts = [own_digest(), release or "", *(rule.code for rule in RULES)]
    parts += [f"{file.path} {file.digest}" for file in tree.files.values()]
    parts += [f"{problem.path} {problem.line} {problem.reason}" for problem in tree.problems]
    if options.aiter is not None:
        parts += AiterSources(options.aiter).digests()
    return digest_of(parts)


def _fresh_result(
    options: AuditOptions, tree: SourceTree, release: str | None, verdicts: VerdictCache | None
) -> _RawResult:
    with start_syntax_check(tree.files.values(), jobs=options.jobs, cache=verdicts) as syntax:
        result, parsed = _engine_result(options, tree, release)
        unparsable = syntax.result(parsed)
    result.findings += [_problem_finding(problem) for problem in (*tree.problems, *unparsable)]
    result.findings = list(dict.fromkeys(result.findings))
    return result


def parsed_files(project: Project) -> frozenset[str]:
    """Return the paths of the files that the engine has parsed well."""
    index = project.index
    return frozenset(path for path in index.parsed_paths() if index.get(module_name(path)) is not None)


def _engine_result(options: AuditOptions, tree: SourceTree, release: str | None) -> tuple[_RawResult, frozenset[str]]:
    result = _RawResult()
    try:
        project = open_project(tree, release=release, aiter=options.aiter)
    except AuditError:
        raise
    except Exception as error:  # noqa: BLE001  whatever the engine meets in foreign source, the report says it
        result.findings.append(_failure("the engine", error))
        result.failed = True
        return result, frozenset()
    for rule in RULES:
        findings, failure = _checked(rule, project)
        result.findings += findings
        if failure is not None:
            result.findings.append(failure)
            result.failed = True
    return result, parsed_files(project)


def _checked(rule: Rule, project: Any) -> tuple[Sequence[Finding], Finding | None]:
    try:
        return tuple(rule.check(project)), None
    except Exception as error:  # noqa: BLE001  one rule that fails must not hide what the others found
        return (), _failure(f"{rule.code} {rule.name}", error)


def _failure(what: str, error: Exception) -> Finding:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    message = f"{what} failed with {type(error).__name__}: {error}{where}"
    help_ = "report this with the tree that shows it; the findings of the other rules are complete"
    return tool_finding(INTERNAL_ERROR, "vllm/__init__.py", 1, message, help=help_)


def _problem_finding(problem: SourceProblem) -> Finding:
    return tool_finding(UNREADABLE_SOURCE, problem.path, problem.line, problem.reason, severity=problem.severity)


@contextmanager
def _collector_off() -> Iterator[None]:
    """Keep the cyclic garbage collector from walking millions of live nodes again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
