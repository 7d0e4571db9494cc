"""TYP002 and TYP003: the two getters through which metadata loses its type."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mla_contract.audit.finding import Finding, Severity
from mla_contract.audit.flow.calls import CONTEXT_GETTER
from mla_contract.audit.model.backends import BACKEND
from mla_contract.audit.model.index import module_name
from mla_contract.audit.model.module import FunctionNode, Module
from mla_contract.audit.model.nodes import text_of, walk
from mla_contract.audit.rule import Page, Rule

if TYPE_CHECKING:
    from mla_contract.audit.project import Project

CONTEXT_PAGE = Page(
    what="get_attention_context, from which the MLA layer takes the metadata of a step, returns Any, or says nothing.",
    why="Whatever is read of the result passes every type checker, a field that no class has included.",
    incident="vllm#50064: the reads of num_decode_tokens that broke two backends came from this getter.",
    bad="def get_attention_context(layer_name: str) -> tuple[Any, MLAAttention, Tensor, Tensor]: ...\n",
    good="def get_attention_context(layer_name: str) -> tuple[AttentionMetadata, MLAAttention, Tensor, Tensor]: ...\n",
)
BUILDER_PAGE = Page(
    what=(
        "get_builder_cls of a backend has no return annotation. Of the extension point itself this is info: a backend "
        "can annotate its own."
    ),
    why="The builder, and with it the metadata that it returns, is Any to everyone who asks the backend for it.",
    incident="vLLM 0.33.0 has the return type of the extension point in a comment, which no checker reads.",
    bad="class MyBackend(AttentionBackend):\n    @staticmethod\n    def get_builder_cls():\n        return MyBuilder\n",
    good=(
        "class MyBackend(AttentionBackend):\n"
        "    @staticmethod\n"
        '    def get_builder_cls() -> type["MyBuilder"]:\n'
        "        return MyBuilder\n"
    ),
)

_GETTER = "get_builder_cls"
_UNANNOTATED = re.compile(rb"def get_builder_cls\([^)]*\)\s*:")


def check_context(project: Project) -> Iterator[Finding]:
    """Report every definition of the context getter whose result is Any."""
    for module in project.index.containing(f"def {CONTEXT_GETTER}".encode()):
        for function in project.index.functions(module):
            node = function.node
            if node.name == CONTEXT_GETTER and _is_any(node.returns):
                returned = f"returns {text_of(node.returns)}" if node.returns is not None else "has no return type"
                yield CONTEXT_RULE.finding(
                    module.path,
                    node,
                    f"{CONTEXT_GETTER} {returned}: no read of the metadata it returns is checked",
                    field=CONTEXT_GETTER,
                    help="return the metadata base class and narrow it where fields are read",
                )


def check_builder(project: Project) -> Iterator[Finding]:
    """Report every backend whose builder getter has no return annotation."""
    for path, file in project.index.tree.files.items():
        if _GETTER.encode() in file.data and _UNANNOTATED.search(file.data):
            module = project.index.get(module_name(path))
            if module is not None:
                yield from _builder_findings(project, module)


def _builder_findings(project: Project, module: Module) -> Iterator[Finding]:
    for cls, node in _getters(module):
        info = project.index.class_info(module, cls)
        if BACKEND not in info.base_names:
            continue
        root = cls.name == BACKEND
        yield BUILDER_RULE.finding(
            module.path,
            node,
            f"{cls.name}.{_GETTER} has no return annotation: the builder and its metadata are Any to every caller",
            severity=Severity.INFO if root else None,
            cls=info.qualname,
            field=_GETTER,
            help='annotate it, such as -> type["AttentionMetadataBuilder[...]"]',
        )


def _getters(module: Module) -> Iterator[tuple[ast.ClassDef, FunctionNode]]:
    """Yield the classes of a module, those inside functions included, with an unannotated getter of their own."""
    for cls in walk(module.tree):
        if isinstance(cls, ast.ClassDef):
            for node in cls.body:
                if isinstance(node, ast.FunctionDef) and node.name == _GETTER and node.returns is None:
                    yield cls, node


def _is_any(annotation: ast.expr | None) -> bool:
    if annotation is None:
        return True
    return re.search(r"\bAny\b", text_of(annotation)) is not None


CONTEXT_RULE = Rule("TYP002", "untyped-context-getter", "typing", Severity.INFO, CONTEXT_PAGE, check_context)
BUILDER_RULE = Rule("TYP003", "untyped-builder-getter", "typing", Severity.WARNING, BUILDER_PAGE, check_builder)
