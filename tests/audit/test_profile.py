"""Profiles: what they extract, that the shipped ones are what the sources give, and what a diff says."""

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mla_contract import profiles
from mla_contract.audit.diff import Change, ChangeKind, diff_profiles
from mla_contract.audit.profile import fields_of, profile_tree, render_profile
from mla_contract.audit.project import open_project
from mla_contract.audit.source.tree import open_tree
from mla_contract.errors import InvalidContract
from mla_contract.profiles import known_minors, load_classes, load_profile, load_reads
from tests.audit.rules.drift_trees import BASE, open_case

EXAMPLE = Path(__file__).parents[2] / "examples" / "tree"
SCRIPT = Path(__file__).parents[2] / "scripts" / "make_profiles.py"


def example_profile() -> dict[str, Any]:
    """Return the profile of the bundled example tree."""
    return profile_tree(open_project(open_tree(EXAMPLE), release="9.9.9"))


def small_profile(**changes: Any) -> dict[str, Any]:
    """Return a hand-written profile of one class and one read, with parts replaced."""
    profile: dict[str, Any] = {
        "schema": 1,
        "release": "1.0",
        "reads": [read("num_decodes")],
        "classes": {"m.Meta": cls(num_decodes=("int", None), seq_lens=("Tensor", "None"))},
        "backends": [],
        "signatures": {"AttentionMetadataBuilder.build": "self, common_prefix_len"},
        "functions": {"m:split": "aa"},
    }
    return {**profile, **changes}


def read(path: str, condition: str | None = None) -> dict[str, Any]:
    """Return one read of a field."""
    return {
        "path": path,
        "file": "m.py",
        "line": 7,
        "function": "Layer.forward",
        "guard": condition,
        "condition": condition,
        "default": False,
        "reached_by": ["sparse"],
    }


def cls(**fields: tuple[str, str | None]) -> dict[str, Any]:
    """Return one metadata class with own fields."""
    own = {name: {"type": kind, "default": default} for name, (kind, default) in fields.items()}
    return {"kind": "metadata", "file": "m.py", "line": 1, "bases": [], "fields": own, "inherited": {}}


def found(old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, str]]:
    """Return kind and subject of each change."""
    return [(change.kind.value, change.subject) for change in diff_profiles(old, new)]


def test_profile_names_who_reads_a_field_and_behind_what() -> None:
    """A read of the shared layer comes with place, function and the backends that reach it."""
    reads = [r for r in example_profile()["reads"] if r["path"] == "num_decode_tokens"]
    assert reads
    for entry in reads:
        source = (EXAMPLE / entry["file"]).read_text().splitlines()[entry["line"] - 1]
        assert "num_decode_tokens" in source
        assert entry["condition"] is None


def test_profile_rendering_is_json_and_stable() -> None:
    """The text of a profile is read back as the profile, twice the same."""
    profile = example_profile()
    text = render_profile(profile)
    assert json.loads(text) == json.loads(json.dumps(profile))
    assert render_profile(example_profile()) == text


def test_diff_of_a_profile_with_itself_is_empty() -> None:
    """Equal profiles have no changes: the control of all that follow."""
    assert diff_profiles(small_profile(), small_profile()) == []


@pytest.mark.parametrize(
    ("new", "kind", "subject", "breaking"),
    [
        ({"reads": [read("num_decodes"), read("prefill")]}, "new-required-read", "prefill", True),
        ({"reads": [read("num_decodes"), read("seq_lens", "dcp > 1")]}, "new-conditional-read", "seq_lens", False),
        ({"reads": []}, "dropped-read", "num_decodes", False),
        ({"classes": {"m.Meta": cls(num_decodes=("int", None))}}, "dropped-field", "Meta.seq_lens", True),
        (
            {"classes": {"m.Meta": cls(num_decodes=("int", "0"), seq_lens=("Tensor", "None"))}},
            "changed-field",
            "Meta.num_decodes",
            True,
        ),
        (
            {"classes": {"n.Meta": cls(num_decodes=("int", None), seq_lens=("Tensor", "None"), new=("int", "0"))}},
            "new-field",
            "Meta.new",
            False,
        ),
        (
            {"signatures": {"AttentionMetadataBuilder.build": "self"}},
            "changed-signature",
            "AttentionMetadataBuilder.build",
            True,
        ),
        ({"signatures": {}}, "changed-signature", "AttentionMetadataBuilder.build", True),
        ({"functions": {"m:split": "bb"}}, "changed-function", "m:split", False),
        ({"functions": {}}, "changed-function", "m:split", False),
    ],
)
def test_diff_reports_each_kind_of_change(new: dict[str, Any], kind: str, subject: str, breaking: bool) -> None:
    """One change between two profiles is one line, breaking where a backend may be wrong now."""
    changes = diff_profiles(small_profile(), small_profile(**new))
    assert [(c.kind.value, c.subject, c.breaking) for c in changes] == [(kind, subject, breaking)]


def test_diff_read_that_loses_its_condition_is_breaking() -> None:
    """A field that was read under a capability and is read always now breaks backends without it."""
    old = small_profile(reads=[read("seq_lens", "dcp > 1")])
    assert found(old, small_profile(reads=[read("seq_lens")])) == [("read-now-required", "seq_lens")]
    assert found(small_profile(reads=[read("seq_lens")]), old) == []


def test_change_is_one_line_and_json() -> None:
    """A change says its kind, subject, detail and place."""
    change = Change(ChangeKind.NEW_READ, "prefill", "read by forward", "m.py:7")
    assert str(change) == "breaking: new-required-read: prefill: read by forward  (m.py:7)"
    assert change.as_json()["breaking"] is True


def test_load_profile_unknown_release_lists_the_known() -> None:
    """A release without a profile is refused with the known ones; a patch release finds its minor."""
    with pytest.raises(InvalidContract, match=r"0\.24.*0\.33"):
        load_profile("9.1")
    assert load_profile("0.27.0")["release"] == "0.27.1"


def test_shipped_profiles_cover_ten_minors_in_order() -> None:
    """0.24 to 0.33 ship, and each names its release."""
    minors = known_minors()
    assert minors == tuple(f"0.{n}" for n in range(24, 34))
    assert all(load_profile(minor)["release"].startswith(minor + ".") for minor in minors)


def test_shipped_profile_parts_make_one_document() -> None:
    """What the run time reads and what the audit reads are disjoint, and together what the command writes."""
    reads, classes = load_reads("0.33"), load_classes("0.33")
    assert reads.keys() & classes.keys() == {"schema", "release"}
    assert (reads["schema"], reads["release"]) == (classes["schema"], classes["release"])
    assert load_profile("0.33") == {**reads, **classes}
    assert load_profile("0.33").keys() == profile_tree(open_case(BASE)).keys()


def test_shipped_profiles_tell_when_counts_became_required() -> None:
    """0.26 began to read the counts of sparse metadata; 0.25 did not."""
    reads = {minor: load_profile(minor)["reads"] for minor in ("0.25", "0.26")}

    def firm(minor: str) -> set[str]:
        return {r["path"] for r in reads[minor] if r["condition"] is None and "sparse" in r["reached_by"]}

    assert {"num_decodes", "num_prefills", "num_decode_tokens"} <= firm("0.26")
    assert not {"num_decodes", "num_prefills", "num_decode_tokens"} & firm("0.25")


def test_shipped_profiles_resolve_inherited_fields() -> None:
    """An inherited field is found with the type and default of the class that declares it."""
    profile = load_profile("0.33")
    name = next(n for n, c in profile["classes"].items() if c["inherited"] and c["kind"] == "metadata")
    fields = fields_of(profile, name)
    assert set(profile["classes"][name]["inherited"]) <= set(fields)


@pytest.mark.slow
def test_shipped_profile_is_what_the_sources_give(release_tree: Callable[[str], Path], tmp_path: Path) -> None:
    """A regenerated profile equals the shipped one to the letter."""
    write_profile = runpy.run_path(str(SCRIPT))["write_profile"]
    project = open_project(open_tree(release_tree("0.33.0")), release="0.33.0")
    written = write_profile(profile_tree(project), "0.33", tmp_path)
    assert sorted(path.relative_to(tmp_path).parts[0] for path in written) == ["classes", "reads"]
    for path in written:
        shipped = Path(profiles.__file__).parent / path.relative_to(tmp_path)
        assert path.read_text(encoding="utf-8") == shipped.read_text(encoding="utf-8")
