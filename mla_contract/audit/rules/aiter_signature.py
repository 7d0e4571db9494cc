"""SIG001: a call into aiter that the signature in the aiter at hand does not take, or takes in another meaning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mla_contract.audit.aiter.calls import CallSite, call_sites
from mla_contract.audit.aiter.optional_imports import optional_imports
from mla_contract.audit.aiter.reached_functions import reached_functions
from mla_contract.audit.aiter.signatures import annotated_kinds, bind, read_signature
from mla_contract.audit.aiter.sources import AiterSources
from mla_contract.audit.aiter.targets import Target, Targets
from mla_contract.audit.finding import Finding, Severity
from mla_contract.audit.model.index import Function
from mla_contract.audit.model.module import Module
from mla_contract.audit.model.nodes import text_of
from mla_contract.audit.rule import Page, Rule

if TYPE_CHECKING:
    from mla_contract.audit.project import Project

PAGE = Page(
    what=(
        "With --aiter, every call that the sparse MLA path makes into aiter is bound to the definition in those "
        "sources: a parameter that is not there, a required one that the call does not pass, too many arguments, an "
        "argument that now binds to a parameter of another kind or to another parameter than the one of its own name, "
        "and a function or module that is gone. Imports that the code can do without, old module names that aiter maps "
        "to new ones, and arguments that it passes only after a look at the signature are not reported."
    ),
    why=(
        "aiter inserts parameters in the middle of signatures, and its releases are not in the order of their version "
        "numbers. A call then fails at the first step, or a scale binds to a page size and the numbers are wrong."
    ),
    incident="aiter#3689: mla_reduce_v1 gained a positional num_kv_splits, and every MLA model crashed at prefill.",
    bad=(
        "# aiter: def mla_reduce(partial, indptr, num_kv_splits: int, out: torch.Tensor)\n"
        "from aiter import mla_reduce\n"
        "mla_reduce(partial, indptr, out)\n"
    ),
    good=("from aiter import mla_reduce\nmla_reduce(partial, indptr, num_kv_splits=0, out=out)\n"),
)


def check(project: Project) -> Iterator[Finding]:
    """Bind every call of the sparse path to the sources of aiter, where they are given."""
    if project.aiter is None:
        return
    sources = AiterSources(project.aiter)
    functions = reached_functions(project.index)
    targets: dict[str, Targets] = {}
    absent: list[tuple[CallSite, str]] = []
    for function in functions:
        if function.module.name not in targets:
            targets[function.module.name] = Targets(project.index, function.module)
        for site in call_sites(targets[function.module.name], function):
            outcome = _outcome(sources, site)
            if isinstance(outcome, str):
                absent.append((site, outcome))
            elif outcome is not None:
                yield from _mismatches(site, *outcome)
    yield from _absences(absent, list(targets.values()))


def _outcome(sources: AiterSources, site: CallSite) -> tuple[Target, Function] | str | None:
    """Return the definition that a call reaches, or why none, or None where the sources do not tell."""
    reasons: list[str] = []
    for target in site.targets:
        found = _resolve(sources, target)
        if isinstance(found, Function):
            return target, found
        if found is None:
            return None
        reasons.append(found)
    return None if any(target.optional for target in site.targets) else reasons[0]


def _absences(absent: list[tuple[CallSite, str]], names: list[Targets]) -> Iterator[Finding]:
    """Report what is gone, once per file, unless some module of the path asks for it before use."""
    if not absent:
        return
    wanted = {(t.name or t.module).rpartition(".")[2] for site, _ in absent for t in site.targets}
    wanted |= {t.module.rpartition(".")[2] for site, _ in absent for t in site.targets}
    asking = [n for n in names if any(word in line for line in n.module.lines for word in wanted)]
    asked = {(t.module, t.name) for n in asking for t in optional_imports(n.index, n.module)}
    seen: set[tuple[str, str]] = set()
    for site, reason in absent:
        key = (site.function.module.path, reason)
        if key not in seen and not any((t.module, n) in asked for t in site.targets for n in (t.name, None)):
            seen.add(key)
            yield _finding(site, site.targets[0], reason, None)


def _mismatches(site: CallSite, target: Target, found: Function) -> Iterator[Finding]:
    signature = read_signature(found.node, bound=found.owner is not None)
    kinds = annotated_kinds(site.function.node)
    problems = [m for m in bind(signature, site.arguments, kinds) if m.name not in site.probes]
    for condition in dict.fromkeys(m.condition for m in problems):
        texts = [m.text for m in problems if m.condition == condition]
        where = f"{found.module.path}:{found.node.lineno}"
        shape = f"{signature.name}({text_of(found.node.args)})"
        yield _finding(site, target, f"{signature.name} ({where}) {'; '.join(texts)}", condition, shape)


def _finding(site: CallSite, target: Target, text: str, condition: str | None, signature: str | None = None) -> Finding:
    caller = site.function.qualname.rpartition(":")[2]
    tail = f"; only where {condition}" if condition else ""
    return RULE.finding(
        site.function.module.path,
        site.node,
        f"{caller} calls {target.dotted}: {text}{tail}",
        severity=Severity.WARNING if condition else None,
        field=(target.name or target.module).rpartition(".")[2],
        reader=site.function.qualname,
        condition=condition,
        help=f"pass everything after the tensors by keyword; the signature is {signature}"
        if signature
        else ("call what this aiter has, or guard the import"),
    )


def _resolve(sources: AiterSources, target: Target) -> Function | str | None:
    """Return the definition of a target, why there is none, or None where the sources do not tell."""
    module = sources.module(target.module)
    if module is None:
        return f"aiter has no module {target.module}"
    if target.name is None:
        return None
    *parents, last = target.name.split(".")
    for parent in parents:
        found = sources.member(module, parent)
        if not isinstance(found, Module):
            return None if found is not None else f"{module.name} has no {parent}"
        module = found
    symbol = sources.member(module, last)
    if symbol is None:
        return f"{module.name} has no {last}"
    return symbol if isinstance(symbol, Function) else None


RULE = Rule("SIG001", "aiter-signature", "signature", Severity.ERROR, PAGE, check)
