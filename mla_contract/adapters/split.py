"""The only division of a batch into decodes and prefills.

No order of rows is refused: runners order by the threshold of one group of layers, by whether a row has drafts, or by
class, and whatever stands behind the first prefill attends as one. Dividing as vLLM does is right for each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mla_contract.adapters.arrays import BoolArray, Int32Array
from mla_contract.adapters.fault import InvalidBatch, int_faults, type_faults, validate_settings
from mla_contract.adapters.release import NEWEST, Behaviour, behaviour_of

if TYPE_CHECKING:
    from mla_contract.adapters.batch import BatchShape


@dataclass(frozen=True, slots=True)
class SplitRule:
    """How a backend divides.

    Attributes:
        threshold: Longest query that is still a decode, in tokens.
        require_uniform: All decodes have the query length of the first row.
        treat_short_extends_as_decodes: A short query decodes even while its prompt is being computed.
        release: The vLLM release whose division is wanted.
    """

    threshold: int = 1
    require_uniform: bool = False
    treat_short_extends_as_decodes: bool = True
    release: str | None = NEWEST

    def __post_init__(self) -> None:
        validate_settings([*int_faults(self, {"threshold": 1}), *type_faults(self, {"release": (str, type(None))})])


class Split(NamedTuple):
    """A batch divided: the leading rows decode, the others prefill.

    Attributes:
        num_decodes: Leading requests on the decode path; padding requests among them count.
        num_prefills: Trailing requests on the prefill path.
        num_decode_tokens: Tokens of the decodes; padding tokens count when there are no prefills.
        num_prefill_tokens: Tokens of the prefills; with ``num_decode_tokens`` they are the batch's tokens.
    """

    num_decodes: int
    num_prefills: int
    num_decode_tokens: int
    num_prefill_tokens: int


def split_batch(shape: BatchShape, rule: SplitRule) -> Split:
    """Divide a batch into leading decodes and trailing prefills.

    A row without query tokens is padding and never starts the prefills. An empty batch has neither part. Where the
    batch carries ``split_query_lens``, rows are judged by those, and tokens are counted by the real query lengths.

    Args:
        shape: The batch, in any order.
        rule: How to divide.

    Returns:
        The counts, in requests and tokens.

    Raises:
        InvalidBatch: Short extends are to be prefills, and the batch does not say which rows are prefilling.

    Sync: none.
    Source: vLLM 0.32.0 v1/attention/backends/utils.py, split_decodes_and_prefills; ``rule.release`` selects the lines
        0.19 to 0.25, 0.26 to 0.30 and 0.31 to 0.33.
    """
    num_reqs, num_tokens = shape.num_reqs, shape.num_actual_tokens
    if not rule.treat_short_extends_as_decodes and shape.is_prefilling is None:
        raise InvalidBatch(
            "is_prefilling",
            {"expected": "one flag for each request", "got": None},
            help="treat_short_extends_as_decodes=False needs it to tell a short extend from a decode",
        )
    boundary = _first_prefill(shape, rule) if num_reqs else 0
    if boundary == num_reqs:
        return Split(num_reqs, 0, num_tokens, 0)
    num_decode_tokens = int(shape.query_start_loc[boundary])
    return Split(boundary, num_reqs - boundary, num_decode_tokens, num_tokens - num_decode_tokens)


def _first_prefill(shape: BatchShape, rule: SplitRule) -> int:
    """Return the first row on the prefill path; the number of rows if there is none."""
    lens = shape.query_lens if shape.split_query_lens is None else shape.split_query_lens
    if (
        shape.max_query_len <= rule.threshold
        and (not rule.require_uniform or rule.threshold <= 1)
        and rule.treat_short_extends_as_decodes
    ):
        return shape.num_reqs
    # Whatever stands behind a prefill is a prefill, even a row that could decode: kernels take two slices.
    if lens[0] > rule.threshold:
        return 0
    if rule.require_uniform:
        is_prefill = _breaks_uniformity(lens, rule, behaviour_of(rule.release))
    else:
        is_prefill = lens > rule.threshold
    if is_prefill is None:
        return shape.num_reqs
    if not rule.treat_short_extends_as_decodes and shape.is_prefilling is not None:
        is_prefill = is_prefill | shape.is_prefilling
    # The first of the maxima: row 0 as well when no row is a prefill.
    first = int(is_prefill.argmax())
    return first if is_prefill[first] else shape.num_reqs


def _breaks_uniformity(lens: Int32Array, rule: SplitRule, behaviour: Behaviour) -> BoolArray | None:
    """Return the rows whose length is not the first row's; None if the batch is uniform and so all decodes."""
    # A backend that asks for uniform decodes reads them as one rectangle: whatever differs from the first row, even
    # a shorter decode, must take the prefill path. Padding fits into any rectangle.
    differs = lens != lens[0]
    differs_live = differs & (lens != 0)
    shortcut = rule.treat_short_extends_as_decodes or behaviour.uniform_shortcut_ignores_prefilling
    if shortcut and not differs_live.any():
        return None
    return np.asarray(differs if behaviour.padding_starts_prefills else differs_live, dtype=np.bool_)
