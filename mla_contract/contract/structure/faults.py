"""The codes of structural faults: what can be wrong with a record before any two facts are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of structural fault.

    Attributes:
        code: Stable code.
        kind: Name inside the library.
        sentence: What a violation's headline says.
        why: Why it matters.
        example: The smallest example.
        help: What to do.
        incident: A public case.
    """

    code: str
    kind: str
    sentence: str
    why: str
    example: str
    help: str
    incident: str


FAULTS: tuple[Fault, ...] = (
    Fault(
        "MLA101",
        "missing",
        "field is missing",
        "The shared layer reads the field without a guard; the first step, or the first prefill, raises.",
        "a sparse record without num_decode_tokens",
        "declare the field and set it in build()",
        "vllm#50064",
    ),
    Fault(
        "MLA102",
        "type",
        "value has the wrong type",
        "An array in the place of an int costs a device read on each comparison; another object is misread.",
        "num_decodes=torch.tensor(2)",
        "return a value of the annotated type",
        "vllm#46760",
    ),
    Fault(
        "MLA103",
        "none",
        "None where a value is required",
        "Consumers do not test for None; the failure shows far from its cause.",
        "slot_mapping=None",
        "set the field on every path of build()",
        "vllm#14009",
    ),
    Fault(
        "MLA104",
        "negative",
        "count or length is negative",
        "Kernels read counts as unsigned numbers.",
        "num_prefills=-1",
        "check the subtraction that made it",
        "vllm#51593",
    ),
    Fault(
        "MLA105",
        "dtype",
        "array has the wrong element type",
        "A kernel takes an address and reads its own element type, so the values are silently others.",
        "slot_mapping as int32",
        "convert where the array is made, not where it is read",
        "vllm#40987",
    ),
    Fault(
        "MLA106",
        "rank",
        "array has the wrong number of axes",
        "Strides of another rank address other rows.",
        "query_start_loc of shape [1, 4]",
        "return the annotated shape",
        "vllm#57388",
    ),
    Fault(
        "MLA107",
        "shape",
        "axis has the wrong size",
        "Two arrays that describe the same axis must agree; a kernel trusts the first and reads past the second.",
        "query_start_loc with num_reqs entries",
        "slice every array by the same counts",
        "vllm#48642",
    ),
    Fault(
        "MLA108",
        "residence",
        "array lives on the wrong device",
        "A host array handed to a kernel faults; a device array read on the host waits for the device.",
        "query_start_loc_cpu on the accelerator",
        "copy once, asynchronously, in build()",
        "vllm#45074",
    ),
    Fault(
        "MLA109",
        "strides",
        "array is strided where rows must be dense",
        "Kernels take one stride or none; the second element is read from elsewhere.",
        "seq_lens as a column of a matrix",
        "view a flat buffer, or make the array contiguous",
        "vllm#40987",
    ),
    Fault(
        "MLA110",
        "unreadable",
        "reading the field raises",
        "A property that raises in a debug check raises in the engine as well.",
        "a property that divides by num_decodes",
        "compute the field in build()",
        "vllm#44492",
    ),
    Fault(
        "MLA111",
        "checkable",
        "the object cannot be checked",
        "A check met an object that raises when it is looked at; nothing is known of it.",
        "an object whose __getattr__ raises",
        "return a plain record",
        "vllm#38145",
    ),
)
"""Every kind, in the order of its code."""

CODE_OF: Mapping[str, str] = MappingProxyType({fault.kind: fault.code for fault in FAULTS} | {"tensor_type": "MLA102"})
"""Code of each kind of fault."""

SENTENCE_OF: Mapping[str, str] = MappingProxyType(
    {fault.kind: fault.sentence for fault in FAULTS} | {"tensor_type": "value is not an array"}
)
"""Headline of each kind of fault."""

HELP_OF: Mapping[str, str] = MappingProxyType(
    {fault.kind: fault.help for fault in FAULTS} | {"tensor_type": "return an array of the annotated type"}
)
"""What to do about each kind of fault."""
