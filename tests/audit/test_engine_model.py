"""The model of a tree: names across modules, inheritance, fields, type variables and annotations."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from mla_contract.audit.model.backends import (
    constant_result,
    find_backends,
    metadata_of_builder,
    method_of,
    returned_classes,
)
from mla_contract.audit.model.classes import ClassInfo
from mla_contract.audit.model.index import Assigned, External, Function, ModuleIndex, module_name
from mla_contract.audit.model.module import Import, Module, dotted_name, flat_statements, imported_names, parse_module
from mla_contract.audit.model.types import (
    DeclaredType,
    TypeRef,
    bindings_for,
    part_classes,
    read_annotation,
    type_params,
)
from tests.audit.test_traps import memory_tree, trap_files


def index_of(**files: str) -> ModuleIndex:
    """Return the index of modules below ``vllm``; a double underscore is a slash, and ``init`` is ``__init__``."""
    paths = {f"vllm/{name.replace('__', '/')}.py".replace("/init.", "/__init__."): text for name, text in files.items()}
    return ModuleIndex(memory_tree({"vllm/__init__.py": "", **paths}))


def module(index: ModuleIndex, name: str) -> Module:
    """Return a module that is known to be there."""
    found = index.get(f"vllm.{name}")
    assert found is not None
    return found


def cls(index: ModuleIndex, name: str, of: str = "m") -> ClassInfo:
    """Return a class of a module, nested ones by their dotted name."""
    return next(info for info in index.classes(module(index, of)) if info.name == name)


def names(infos: tuple[ClassInfo, ...]) -> list[str]:
    """Return the names of classes."""
    return [info.name for info in infos]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("vllm/__init__.py", "vllm"),
        ("vllm/v1/backend.py", "vllm.v1.backend"),
        ("vllm/models/x/__init__.py", "vllm.models.x"),
    ],
)
def test_module_name_path_gives_dotted_name(path: str, name: str) -> None:
    """A package is named by its directory, a module by its file."""
    assert module_name(path) == name


def test_imported_names_relative_levels_start_from_the_package() -> None:
    """One dot is the package itself, each further one its parent; more dots than packages give what is left."""
    source = "from . import a\nfrom .b import c as d\nfrom ..e import f\nfrom ... import g\nimport h.i\nimport j.k as l"
    found = {
        name: target
        for node in ast.parse(source).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name, target in imported_names("vllm.v1.mla", node)
    }
    assert found == {
        "a": Import("vllm.v1.mla", "a"),
        "d": Import("vllm.v1.mla.b", "c"),
        "f": Import("vllm.v1.e", "f"),
        "g": Import("vllm", "g"),
        "h": Import("h"),
        "l": Import("j.k"),
    }


def test_flat_statements_blocks_are_entered_and_functions_are_not() -> None:
    """Every block of a scope is part of it; the bodies of functions and classes are not."""
    source = (
        "if a:\n  b = 1\nelse:\n  c = 1\ntry:\n  d = 1\nexcept E:\n  e = 1\nelse:\n  f = 1\nfinally:\n  g = 1\n"
        "with x:\n  h = 1\nmatch x:\n  case 1:\n    i = 1\nfor x in y:\n  j = 1\n"
        "def k():\n  no = 1\nclass L:\n  no = 1\n"
    )
    statements = flat_statements(ast.parse(source).body)
    assigned = [s.targets[0].id for s in statements if isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name)]
    assert sorted(assigned) == list("bcdefghij")


@pytest.mark.parametrize(
    ("source", "name"),
    [("a", "a"), ("a.b.c", "a.b.c"), ("a.b(1).c", "a.b.c"), ("a[0].b", "a.b"), ("(1).a", ""), ("(a or b).c", "")],
)
def test_dotted_name_expression_gives_its_name(source: str, name: str) -> None:
    """Calls and subscripts are named by what they call and subscript; anything else has no name."""
    assert dotted_name(ast.parse(source, mode="eval").body) == name


def test_parse_module_bindings_keep_source_order() -> None:
    """A name bound twice has both bindings, and a star import is kept apart."""
    parsed = parse_module(
        "m", "m.py", "try:\n  from a import x\nexcept E:\n  x = None\nfrom b import *\ny: int = 1\nz: int\n"
    )
    assert parsed.bindings["x"][0] == Import("a", "x")
    assert isinstance(parsed.bindings["x"][1], ast.Constant)
    assert parsed.stars == ["b"]
    assert "y" in parsed.bindings
    assert "z" not in parsed.bindings
    assert not parsed.is_package


def test_resolve_re_exports_lead_to_the_definition() -> None:
    """Renamed imports, packages and star imports are followed across modules."""
    index = index_of(
        pkg__init="from .impl import Thing as Renamed\nfrom .more import *\n",
        pkg__impl="class Thing: pass\n",
        pkg__more="class Other: pass\nVALUE = 3\ndef run(): pass\n",
        m="from vllm.pkg import Renamed, Other, VALUE, run\nimport vllm.pkg as p\nimport torch.nn as nn\n"
        "Alias = Renamed\n",
    )
    here = module(index, "m")
    thing = index.resolve(here, "Renamed")
    assert isinstance(thing, ClassInfo)
    assert thing.qualname == "vllm.pkg.impl.Thing"
    assert repr(thing) == "vllm.pkg.impl.Thing"
    assert index.resolve(here, "Alias") is thing
    other = index.resolve(here, "Other")
    assert isinstance(other, ClassInfo)
    assert other.qualname == "vllm.pkg.more.Other"
    value = index.resolve(here, "VALUE")
    assert isinstance(value, Assigned)
    assert ast.unparse(value.value) == "3"
    run = index.resolve(here, "run")
    assert isinstance(run, Function)
    assert run.qualname == "vllm.pkg.more:run"
    assert index.resolve(here, "nowhere") is None
    assert index.resolve_expr(here, ast.parse("p.Other", mode="eval").body) is other
    assert index.resolve_expr(here, ast.parse("p.more.Other", mode="eval").body) is other
    assert index.resolve_expr(here, ast.parse("nn.Module", mode="eval").body) == External("torch.nn", "Module")
    assert index.resolve_expr(here, ast.parse("nn.a.b", mode="eval").body) == External("torch.nn.a", "b")
    assert index.resolve_expr(here, ast.parse("p.nothing", mode="eval").body) == External("vllm.pkg", "nothing")


def test_resolve_circular_imports_end() -> None:
    """Modules that import one name from each other, or star from each other, resolve to nothing and do not loop."""
    index = index_of(a="from vllm.b import x\nfrom vllm.b import *\n", b="from vllm.a import x\nfrom vllm.a import *\n")
    found = index.resolve(module(index, "a"), "x")
    assert found is None or isinstance(found, External)
    assert index.resolve(module(index, "a"), "y") is None


def test_resolve_alternatives_prefer_what_the_tree_defines() -> None:
    """Of several bindings the first that the tree can follow wins; a foreign name is kept only for want of one."""
    index = index_of(
        m="try:\n  from fast import Thing\nexcept ImportError:\n  class Thing: pass\n", n="from fast import T\n"
    )
    assert isinstance(index.resolve(module(index, "m"), "Thing"), ClassInfo)
    assert index.resolve(module(index, "n"), "T") == External("fast", "T")


def test_get_unparsable_module_is_none() -> None:
    """A file that does not parse, or is not there, is not a module; the rest of the tree is unharmed."""
    index = index_of(bad="def f(:\n", good="x = 1\n")
    assert index.get("vllm.bad") is None
    assert index.get("vllm.none") is None
    assert index.get("vllm.good") is not None
    assert index.parsed_paths() == {"vllm/bad.py", "vllm/good.py"}


def test_mro_diamond_follows_c3() -> None:
    """The order of a diamond is Python's."""
    index = index_of(m="class A: pass\nclass B(A): pass\nclass C(A): pass\nclass D(B, C): pass\n")
    assert names(cls(index, "D").mro) == ["D", "B", "C", "A"]


def test_mro_clash_and_cycle_fall_back() -> None:
    """Orders that Python refuses still give every class once."""
    index = index_of(
        m="class A: pass\nclass B(A): pass\nclass X(A, B): pass\nclass P(Q): pass\nclass Q(P): pass\nclass S(S): pass\n"
    )
    assert names(cls(index, "X").mro) == ["X", "A", "B"]
    assert names(cls(index, "P").mro) == ["P", "Q"]
    assert names(cls(index, "Q").mro) == ["Q", "P"]
    assert names(cls(index, "S").mro) == ["S"]


def test_mro_class_that_extends_its_namesake_keeps_it() -> None:
    """A module may define a class and then one of the same name on top of it."""
    index = index_of(m="class A:\n  x: int\nclass A(A):\n  y: int\n")
    first, second = (info for info in index.classes(module(index, "m")) if info.name == "A")
    assert second.mro == (second, first)
    assert set(second.fields) == {"x", "y"}


def test_mro_wide_lattice_is_linear_in_time() -> None:
    """Thirty layers of two classes with the same two bases are ordered at once."""
    layers = "".join(
        f"class A{i}(A{i - 1}, B{i - 1}): pass\nclass B{i}(A{i - 1}, B{i - 1}): pass\n" for i in range(1, 30)
    )
    index = index_of(m="class A0: pass\nclass B0: pass\n" + layers + "class Z(A29): pass\n")
    assert len(cls(index, "Z").mro) == 60


def test_class_unresolved_bases_decide_whether_it_is_open() -> None:
    """A base that the tree does not show may have anything, typing's own bases and ABC have nothing."""
    index = index_of(
        m="class A(ABC, Generic[T], torch.nn.Module): pass\nclass B(ABC, typing.Generic[T]): pass\n"
        "class C:\n  def __getattr__(self, name): pass\nclass D(C): pass\n"
    )
    assert cls(index, "A").is_open
    assert not cls(index, "B").is_open
    assert cls(index, "D").is_open
    assert cls(index, "A").base_names == {"A", "ABC", "Generic", "Module"}


FIELDS = """
class Base:
    a: int
    b: int = 1
    c = 2
    if FLAG:
        d: str
    class Inner:
        e: int
    @property
    def f(self) -> int: return 1
    @functools.cached_property
    def g(self): return 1
    @f.setter
    def f(self, value): self.hidden = value
    def __init__(self, h):
        self.h, (self.i, other.j) = h
        self.k: float = 1.0
        self.a = 3
    @staticmethod
    def make(self): self.no = 1
    @overload
    def m(self, x: int): ...
    def m(self, x): return x
class Sub(Base):
    b: str = "x"
    def later(self): self.b = self.z = 1
"""


def test_fields_every_kind_is_found_with_its_owner() -> None:
    """Annotations, class attributes, properties, assignments on self and inherited declarations are fields."""
    index = index_of(m=FIELDS)
    base, sub = cls(index, "Base"), cls(index, "Sub")
    kinds = {name: field.kind for name, field in base.own_fields.items()}
    assert kinds == {
        **dict.fromkeys("abcd", "declared"),
        **dict.fromkeys("fg", "property"),
        **dict.fromkeys("hik", "assigned"),
    }
    assert sub.fields["b"].owner is sub
    assert sub.fields["b"].kind == "declared"
    assert sub.fields["a"].owner is base
    assert sub.fields["z"].kind == "assigned"
    assert base.own_assigned("a")
    assert not base.own_assigned("b")
    assert [n for n in ("a", "z", "Inner", "make", "m", "f", "no", "j") if sub.has_attribute(n)] == [
        *("a", "z", "Inner", "make", "m", "f"),
    ]
    assert cls(index, "Base.Inner").qualname == "vllm.m.Base.Inner"
    assert not base.is_dataclass


def test_find_method_after_a_class_is_what_super_reaches() -> None:
    """The search can begin behind a class of the MRO, as super() does."""
    index = index_of(
        m="class A:\n  def f(self): pass\nclass B(A):\n  def f(self): pass\n"
        "@dataclass(kw_only=True)\nclass C(B): pass\n"
    )
    a, b, c = (cls(index, name) for name in "ABC")
    assert c.find_method("f") == (b, b.methods["f"])
    assert c.find_method("f", after=b) == (a, a.methods["f"])
    assert c.find_method("f", after=a) is None
    assert c.is_dataclass
    assert c.is_subclass_of(a)
    assert not a.is_subclass_of(c)
    assert names(index.subclasses(a)) == ["B", "C"]
    assert index.subclasses(c) == ()
    assert method_of(c, "f") == Function(b.module, b.methods["f"], b)
    assert method_of(c, "g") is None


def test_lookup_nested_class_sees_its_siblings() -> None:
    """A base named inside a class is searched in the classes around it first."""
    index = index_of(m="class X: pass\nclass A:\n  class X:\n    y: int\n  class Z(X): pass\n")
    assert names(cls(index, "A.Z").mro) == ["A.Z", "A.X"]


GENERICS = """
from typing import Generic, TypeVar
D = TypeVar("D", bound="Wide")
E = TypeVar("E")
class Narrow: pass
class Wide(Narrow): pass
class Root(Generic[D]):
    part: D
    parts: list[D] | None
class Middle(Root[E], Generic[E]): pass
class Leaf(Middle[Narrow]): pass
class Text(Root["Narrow"]): pass
class Free(Root): pass
class Pair(Generic[E, D]): pass
"""


def test_bindings_for_two_levels_reach_the_root() -> None:
    """A type argument is carried through a generic class between, and one that is missing falls back to the bound."""
    index = index_of(m=GENERICS)
    narrow, wide, root = cls(index, "Narrow"), cls(index, "Wide"), cls(index, "Root")
    assert type_params(root) == ("D",)
    assert type_params(cls(index, "Middle")) == ("E",)
    assert type_params(cls(index, "Pair")) == ("E", "D")
    assert type_params(narrow) == ()

    def part(name: str, *args: ClassInfo) -> DeclaredType:
        ref = TypeRef(cls(index, name), tuple(TypeRef(arg) for arg in args))
        field = root.fields["part"]
        return read_annotation(field.annotation, root.module, root, bindings_for(ref, root))

    assert part("Leaf") == DeclaredType((TypeRef(narrow),))
    assert part("Text") == DeclaredType((TypeRef(narrow),))
    assert part("Middle", narrow) == DeclaredType((TypeRef(narrow),))
    assert part("Free") == DeclaredType((TypeRef(wide),))
    assert part("Root") == DeclaredType((TypeRef(wide),))
    assert bindings_for(TypeRef(narrow), root) == {}


ANNOTATIONS = """
from typing import *
T = TypeVar("T", bound="T")
class A:
    class B: pass
class C(Generic[T]): pass
"""


@pytest.mark.parametrize(
    ("source", "refs", "rest"),
    [
        ("A", "A", {}),
        ("'A'", "A", {}),
        ("A | None", "A", {"optional": True}),
        ("Optional['A']", "A", {"optional": True}),
        ("Union[A, C, None]", "A C", {"optional": True}),
        ("typing.Optional[A]", "A", {"optional": True}),
        ("ClassVar[A]", "A", {}),
        ("Annotated[A, 3]", "A", {}),
        ("type[A]", "A", {"class_of": True}),
        ("A.B", "A.B", {}),
        ("int", "", {"scalar": "int"}),
        ("int | None", "", {"scalar": "int", "optional": True}),
        ("int | str", "", {"scalar": None}),
        ("None", "", {"optional": True}),
        ("torch.Tensor", "", {}),
        ("Unknown[A]", "", {}),
        ("'not ( valid'", "", {}),
        ("'\\0'", "", {}),
        ("3", "", {}),
        ("...", "", {}),
        ("T", "", {}),
    ],
)
def test_read_annotation_forms_give_classes(source: str, refs: str, rest: dict[str, object]) -> None:
    """Each form of an annotation says which classes of the tree, None, a class itself or a scalar it admits."""
    index = index_of(m=ANNOTATIONS)
    here = module(index, "m")
    shape = read_annotation(ast.parse(source, mode="eval").body, here)
    assert [ref.cls.name for ref in shape.refs] == refs.split()
    assert shape.optional is rest.get("optional", False)
    assert shape.class_of is rest.get("class_of", False)
    assert shape.scalar == rest.get("scalar")


def test_read_annotation_containers_give_elements() -> None:
    """Sequences and mappings say what their elements are, tuples of fixed length what each item is."""
    index = index_of(m=ANNOTATIONS)
    here, a = module(index, "m"), TypeRef(cls(index, "A"))

    def shape(source: str) -> DeclaredType:
        return read_annotation(ast.parse(source, mode="eval").body, here, cls(index, "A"))

    assert shape("list[A]").element == DeclaredType((a,))
    assert shape("dict[str, list['A']] | None").element == DeclaredType(element=DeclaredType((a,)))
    assert shape("dict[str, list['A']] | None").optional
    assert shape("tuple[A, ...]").element == DeclaredType((a,))
    assert shape("tuple[int, A]").items == (DeclaredType(scalar="int"), DeclaredType((a,)))
    assert shape("Mapping[str, B]").element == DeclaredType((TypeRef(cls(index, "A.B")),))
    assert shape("C[A]").refs == (TypeRef(cls(index, "C"), (a,)),)
    assert shape("C[torch.Tensor]").refs == (TypeRef(cls(index, "C"), (None,)),)
    assert read_annotation(None, here) == DeclaredType()


def test_read_annotation_deeper_than_recursion_is_unknown() -> None:
    """An annotation that cannot be read in Python's stack says nothing, and raises nothing."""
    index = index_of(m=ANNOTATIONS)
    node: ast.expr = ast.Name("A", ast.Load())
    for _ in range(5000):
        node = ast.Subscript(ast.Name("list", ast.Load()), node, ast.Load())
    assert read_annotation(node, module(index, "m")).refs == ()


def test_part_classes_follow_fields_and_end_in_cycles() -> None:
    """The parts of a class are those of its fields, through containers and parts of parts, each once."""
    index = index_of(
        m="class A:\n  b: 'list[B] | None'\n  n: int\nclass B:\n  c: dict[str, C]\nclass C:\n  a: A\nclass D: pass\n"
    )
    assert set(names(part_classes(cls(index, "A")))) == {"A", "B", "C"}
    assert names(part_classes(cls(index, "D"))) == ["D"]


def test_find_backends_skeleton_names_its_classes() -> None:
    """A backend is found with its metadata, builder and impl; one that is an abstract base is not."""
    (backend,) = find_backends(ModuleIndex(memory_tree(trap_files("skeleton"))))
    assert backend.cls.name == "PlainBackend"
    assert backend.metadata.cls.name == "PlainMetadata"
    assert backend.builder.name == "PlainBuilder"
    assert backend.impl is not None
    assert backend.impl.name == "PlainImpl"
    assert backend.is_mla
    assert not backend.is_indexer


def test_find_backends_indexer_without_impl_is_one() -> None:
    """A cache that only has metadata is an indexer backend when its metadata says so."""
    files = trap_files("skeleton") | {
        "vllm/indexer.py": "from vllm.v1.attention.backend import *\n"
        "class MyIndexerMetadata(AttentionMetadata):\n  x: int\n"
        "class MyIndexerBuilder(AttentionMetadataBuilder):\n"
        "  def build(self, a, b, fast_build=False) -> MyIndexerMetadata: pass\n"
        "class MyIndexerBackend(AttentionBackend):\n"
        "  @staticmethod\n  def get_builder_cls(): return MyIndexerBuilder\n"
    }
    found = {b.cls.name: b for b in find_backends(ModuleIndex(memory_tree(files)))}
    assert found["MyIndexerBackend"].is_indexer
    assert not found["MyIndexerBackend"].is_mla


def test_find_backends_builder_getter_unseen_is_taken_from_the_module() -> None:
    """Where no getter names a builder, the builders beside an MLA backend are its own."""
    path = "vllm/v1/attention/backends/mla/plain.py"
    files = dict(trap_files("skeleton"))
    files[path] = files[path].replace(
        "    def get_builder_cls():\n        return PlainBuilder", "    def other(): pass"
    )
    (backend,) = find_backends(ModuleIndex(memory_tree(files)))
    assert backend.builder.name == "PlainBuilder"


RETURNS = """
from vllm.v1.attention.backend import *
class M1: pass
class M2: pass
class Mixin(Generic[M]): pass
class A(AttentionMetadataBuilder[M1]):
    def build(self) -> M2: pass
    @classmethod
    def is_mla(cls) -> bool:
        "Yes."
        return True
    def two(self):
        if x: return True
        return False
class B(AttentionMetadataBuilder):
    def build(self) -> "M2 | None": pass
class C(AttentionMetadataBuilder): pass
class D(A):
    metadata_cls = M2
class E(foreign.AttentionMetadataBuilder[M1]): pass
class F(Mixin[M2], AttentionMetadataBuilder[M1]): pass
class G(C): pass
class H(AttentionMetadataBuilder["AttentionMetadata"]):
    metadata_cls = choose()
    def build(self) -> AttentionMetadata: pass
def many(self):
    from vllm.elsewhere import Far as Near
    if a: return M1
    return (M2 if b else Near) if c else M1
def none(self):
    return None
"""


def test_metadata_of_builder_prefers_attribute_then_argument_then_annotation() -> None:
    """metadata_cls wins over the type argument, and that over what build says it returns."""
    index = index_of(
        m=RETURNS,
        elsewhere="class Far: pass\n",
        v1__attention__backend=trap_files("skeleton")["vllm/v1/attention/backend.py"],
    )
    found = {name: metadata_of_builder(cls(index, name)) for name in "ABCDEFGH"}
    assert {name: ref.cls.name if ref else None for name, ref in found.items()} == {
        "A": "M1",
        "B": "M2",
        "C": None,
        "D": "M2",
        "E": "M1",
        "F": "M1",
        "G": None,
        "H": None,
    }
    functions = {f.node.name: f.node for f in index.functions(module(index, "m")) if f.owner is None}
    returned = returned_classes(index, cls(index, "A"), functions["many"])
    assert [info.qualname for info in returned] == ["vllm.m.M1", "vllm.m.M2", "vllm.elsewhere.Far"]
    assert returned_classes(index, cls(index, "A"), functions["none"]) == []
    assert constant_result(cls(index, "A"), "is_mla") is True
    assert constant_result(cls(index, "A"), "two") is None
    assert constant_result(cls(index, "A"), "absent") is None


UNTYPED = """
from dataclasses import dataclass
from typing import Generic, TypeVar
from vllm.v1.attention.backend import AttentionBackend, AttentionMetadata, AttentionMetadataBuilder, MLAAttentionImpl
class Builder(AttentionMetadataBuilder):
    def build(self, a, b, fast_build=False): pass
class One(AttentionMetadata): pass
class Two(AttentionMetadata): pass
class Impl(MLAAttentionImpl[Two]): pass
class Bare(MLAAttentionImpl): pass
class Other: pass
class Named(AttentionBackend):
    def get_metadata_cls(): return One
    def get_impl_cls(): return Impl
    def get_builder_cls(): return Builder
class ByImpl(AttentionBackend):
    def get_impl_cls(): return Impl
    def get_builder_cls(): return Builder
class Nothing(AttentionBackend):
    def get_impl_cls(): return Bare
    def get_builder_cls(): return Builder
class Dense(AttentionBackend):
    def get_metadata_cls(): return One
    def get_impl_cls(): return Other
    def get_builder_cls(): return Builder
class Without(AttentionBackend):
    def get_metadata_cls(): return One
class Bottomless(AttentionBackend):
    def get_impl_cls(): return %s Impl
    def get_builder_cls(): return Builder
"""


def test_find_backends_metadata_unseen_in_the_builder_is_taken_from_elsewhere() -> None:
    """The backend's getter comes first, then the type argument of the impl; without either there is no backend."""
    deep = "Impl if x else " * 1500
    files = {**trap_files("skeleton"), "vllm/m.py": UNTYPED % deep}
    found = find_backends(ModuleIndex(memory_tree(files)))
    assert {b.cls.name: b.metadata.cls.name for b in found} == {
        "Named": "One",
        "ByImpl": "Two",
        "PlainBackend": "PlainMetadata",
    }


def test_index_of_tree_on_no_disk_reads_nothing() -> None:
    """The root of a tree in memory need not exist: every source comes from the tree."""
    tree = memory_tree({"vllm/__init__.py": "x = 1\n"}, label="nowhere")
    assert not Path(tree.root).exists()
    assert ModuleIndex(tree).get("vllm") is not None
