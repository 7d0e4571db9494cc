"""POL002: what an operation reserves while profiling, against what it asks for when it serves a batch."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING

from mla_contract.audit.finding import Finding, Severity
from mla_contract.audit.policy.sizes import Size
from mla_contract.audit.policy.workspace import Request, Spec, WorkspaceOperation, find_operations
from mla_contract.audit.rule import Page, Rule

if TYPE_CHECKING:
    from mla_contract.audit.project import Project

PAGE = Page(
    what=(
        "An operation without metadata returns early, in a branch that reserves workspace for the memory profile. The "
        "rule compares that branch with the rest: (a) a run-time request that grows with the context has no "
        "counterpart in the branch; (b) the counterpart is certainly smaller; (c) the branch reserves as many rows as "
        "the step may have tokens for a buffer that only decodes use; (d) a tensor that grows with the context is "
        "allocated at run time beside the manager. Requests are followed into the functions that an operation calls, "
        "and compared as products of the operation's own names. What cannot be compared is not reported. The manager "
        "keeps the largest request, so the order of calls and the way they are grouped do not matter."
    ),
    why=(
        "After profiling the workspace is locked: a request that was not reserved is an assertion at the first long "
        "prompt. One that is far too large takes the memory of the KV cache, or does not fit at all."
    ),
    incident="vllm#55132: the ROCm indexer reserved 32 GiB for decode logits, with a row for each prefill token.",
    bad=(
        "if not isinstance(attn_metadata, dict):\n"
        "    manager.get_simultaneous(((hidden_states.shape[0], max_model_len), torch.float32))\n"
        "    return out\n"
        "if metadata.num_decodes > 0:\n"
        "    rows = metadata.decode.seq_lens.shape[0]\n"
        "    (logits,) = manager.get_simultaneous(((rows, max_model_len), torch.float32))\n"
    ),
    good=(
        "if not isinstance(attn_metadata, dict):\n"
        "    rows = min(hidden_states.shape[0], max_num_seqs * (1 + num_speculative_tokens))\n"
        "    manager.get_simultaneous(((rows, max_model_len), torch.float32))\n"
        "    return out\n"
    ),
)
CONTEXT = re.compile(r"(?:\w+\.)*\w*(?:max_model_len|max_seq_?len|total_seq_len|max_pool_len|max_context_len)\w*")
MAX_NAME = 40
ROWS = re.compile(r"^\w+\.shape\[0\]$|^\w+\.size\(0\)$|^(?:\w+\.)*max_num_batched_tokens$")


def check(project: Project) -> Iterator[Finding]:
    """Compare the two sides of every operation with a profiling branch."""
    seen: set[tuple[str, int, str]] = set()
    for operation in find_operations(project.index):
        for finding in (*_unreserved(operation), *_smaller(operation), *_larger(operation), *_unmanaged(operation)):
            key = (finding.path, finding.line, finding.severity.value)
            if key not in seen:
                seen.add(key)
                yield finding


def _unreserved(operation: WorkspaceOperation) -> Iterator[Finding]:
    """Yield the run-time requests that grow with something that no reservation grows with."""
    reserved = " ".join(s.text for r in operation.reserved if r.managed for s in r.specs)
    reported: set[str] = set()
    for request in operation.used:
        for spec in request.specs if request.managed else ():
            grows = sorted(name for name in _context(spec) if not re.search(rf"\b{re.escape(name)}\b", reserved))
            if grows and len(grows) == len(_context(spec)) and grows[0] not in reported:
                reported.add(grows[0])
                others = [s for r in operation.reserved if not r.managed for s in r.specs]
                beside = any(grows[0] in atom for s in others for dim in s.dims for atom in dim.atoms)
                tail = "; the branch allocates such memory, but not from the manager" if beside else ""
                yield _finding(
                    operation,
                    operation.function.module.path,
                    operation.branch,
                    f"the profiling branch of {_name(operation)} reserves nothing that grows with {grows[0]}, and the "
                    f"operation asks the manager for {_shape(spec)} at {_place(request)}{tail}",
                    grows[0],
                    "ask the manager for the same shape in the profiling branch, with the largest sizes it can have",
                    request,
                )


def _smaller(operation: WorkspaceOperation) -> Iterator[Finding]:
    """Yield the reservations that are certainly smaller than a request made of the same names."""
    for request in operation.used:
        for spec in request.specs if request.managed else ():
            twins = [(r, t) for r, t in _specs(operation) if _same_names(spec, t)]
            if not spec.dims or not twins or spec.item_bytes is None:
                continue
            needed = _total(spec)
            too_small = [(r, t) for r, t in twins if t.item_bytes and needed.exceeds(_bytes(t.bound, t.item_bytes))]
            if len(too_small) == len(twins):
                reservation, twin = too_small[0]
                yield _finding(
                    operation,
                    reservation.function.module.path,
                    reservation.node,
                    f"the profiling branch of {_name(operation)} reserves {_shape(twin)}, less than the {_shape(spec)} "
                    f"that the operation asks for at {_place(request)}",
                    _shape(twin),
                    "reserve what the run asks for: compute the shape in one function that both branches call",
                    request,
                )


def _larger(operation: WorkspaceOperation) -> Iterator[Finding]:
    """Yield the reservations with a row for each token of a step, for a buffer that only decodes use."""
    for reservation, spec in _specs(operation):
        rows = [i for i, dim in enumerate(spec.dims) if _is_token_bound(dim)]
        if len(rows) != 1 or not _context(spec):
            continue
        users = [(r, s) for r in operation.used if r.managed for s in r.specs if _is_twin(spec, s, rows[0])]
        if users and all(_is_decode(request) for request, _ in users):
            request, used = users[0]
            yield _finding(
                operation,
                reservation.function.module.path,
                reservation.node,
                f"the profiling branch of {_name(operation)} reserves {_shape(spec)}: a row for each of "
                f"{_text(spec.dims[rows[0]])} tokens, where only decodes ask for it "
                f"({_shape(used)} at {_place(request)})",
                _text(spec.dims[rows[0]]),
                "bound the rows by max_num_seqs * (1 + num_speculative_tokens) as well",
                request,
            )


def _unmanaged(operation: WorkspaceOperation) -> Iterator[Finding]:
    """Yield the run-time tensors, of rows times context, that do not come from the manager."""
    reported: set[str] = set()
    for request in operation.used:
        for spec in request.specs if not request.managed else ():
            name = request.function.qualname
            if len(spec.dims) > 1 and _context(spec) and request.tests and name not in reported:
                reported.add(name)
                yield RULE.finding(
                    request.function.module.path,
                    request.node,
                    f"{request.function.node.name} allocates {_shape(spec)} itself when {_name(operation)} runs, "
                    "instead of asking the workspace manager that holds the reservation",
                    severity=Severity.INFO,
                    field=sorted(_context(spec))[0],
                    reader=operation.function.qualname,
                    guard=request.tests[-1],
                    help="take it from the workspace manager, and reserve it in the profiling branch",
                )


def _finding(
    operation: WorkspaceOperation, path: str, node: ast.AST, message: str, field: str, help_: str, request: Request
) -> Finding:
    guard = " and ".join(request.tests) or None
    return RULE.finding(path, node, message, field=field, reader=operation.function.qualname, guard=guard, help=help_)


def _specs(operation: WorkspaceOperation) -> list[tuple[Request, Spec]]:
    return [(r, s) for r in operation.reserved if r.managed for s in r.specs if s.dims]


def _is_twin(reserved: Spec, used: Spec, row: int) -> bool:
    """Return whether two specs are the same buffer, apart from how many rows it has."""
    if len(reserved.dims) != len(used.dims) or reserved.item_bytes != used.item_bytes:
        return False
    pairs = [p for i, p in enumerate(zip(reserved.dims, used.dims, strict=True)) if i != row]
    grows = [(a, b) for a, b in pairs if any(CONTEXT.fullmatch(atom) for atom in a.atoms)]
    return reserved.dims[row] != used.dims[row] and all(a == b for a, b in grows)


def _same_names(spec: Spec, other: Spec) -> bool:
    atoms = frozenset(a for dim in spec.dims for a in dim.atoms)
    return bool(atoms) and atoms == other.bound.atoms and len(spec.dims) == len(other.dims)


def _is_token_bound(dim: Size) -> bool:
    return len(dim.terms) == 1 and len(dim.atoms) == 1 and bool(ROWS.match(next(iter(dim.atoms))))


def _is_decode(request: Request) -> bool:
    tests = " ".join(request.tests)
    return "decode" in tests and "prefill" not in tests


def _context(spec: Spec) -> frozenset[str]:
    """Return the names in the sizes of a spec that grow with the length of the context."""
    return frozenset(atom for dim in spec.dims for atom in dim.atoms if CONTEXT.fullmatch(atom))


def _total(spec: Spec) -> Size:
    return _bytes(spec.elements, spec.item_bytes or 1)


def _bytes(elements: Size, item: int) -> Size:
    return elements.times(Size((((), Fraction(item)),)))


def _shape(spec: Spec) -> str:
    item = {4: " of 4 bytes", 2: " of 2 bytes", 1: " bytes", 8: " of 8 bytes"}.get(spec.item_bytes or 0, "")
    return f"({', '.join(_text(dim) for dim in spec.dims)}){item}"


def _text(size: Size) -> str:
    parts = []
    for key, factor in size.terms:
        number = [] if factor == 1 and key else [str(factor)]
        parts.append(" * ".join([*number, *(_short(name) for name in key)]))
    return " + ".join(parts) or "0"


def _short(name: str) -> str:
    return name if len(name) <= MAX_NAME else f"...{name[-MAX_NAME:]}"


def _name(operation: WorkspaceOperation) -> str:
    return operation.function.qualname.rpartition(":")[2]


def _place(request: Request) -> str:
    return f"{request.function.module.path}:{request.node.lineno}"


RULE = Rule("POL002", "workspace-reservation", "policy", Severity.WARNING, PAGE, check)
