"""The only division of a batch into decodes and prefills, and the order of rows that it relies on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mla_contract.adapters.arrays import BoolArray, Int32Array
from mla_contract.adapters.fault import InvalidBatch, int_faults, type_faults, validate_settings
from mla_contract.adapters.release import NEWEST, Behaviour, behaviour_of

if TYPE_CHECKING:
    from mla_contract.adapters.batch import BatchShape


class OrderClass(IntEnum):
    """Kinds of rows, in the order in which a batch holds them.

    Source: vLLM 0.32.0 v1/attention/backends/utils.py, reorder_batch_to_split_decodes_and_prefills.
    """

    DECODE = 0
    """At most ``threshold`` tokens, and past the prompt."""
    SHORT_EXTEND = 1
    """At most ``threshold`` tokens of a prompt that has cached context."""
    LONG_EXTEND = 2
    """More than ``threshold`` tokens after cached context."""
    PREFILL = 3
    """No cached context."""


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
        shape: The batch; its order is not checked here.
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
    # Whatever stands behind a prefill is a prefill: vLLM's runners order rows so, and kernels take two slices.
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


def order_classes(shape: BatchShape, threshold: int) -> NDArray[np.int8]:
    """Return the order class of each row.

    Args:
        shape: The batch; without ``is_prefilling`` every short row with context counts as a decode.
        threshold: Longest query that is still a decode, in tokens.

    Returns:
        [num_reqs] int8 of ``OrderClass``; padding rows carry the class of the row before them.

    Sync: none.
    Source: vLLM 0.32.0 v1/attention/backends/utils.py, reorder_batch_to_split_decodes_and_prefills.
    """
    lens = shape.query_lens if shape.split_query_lens is None else shape.split_query_lens
    classes = (lens > threshold).view(np.int8) * np.int8(OrderClass.LONG_EXTEND)
    if shape.is_prefilling is not None:
        classes[(lens <= threshold) & shape.is_prefilling] = OrderClass.SHORT_EXTEND
    classes[shape.context_lens == 0] = OrderClass.PREFILL
    # Padding has no class of its own: with that of the row before it, it never seems to stand too late.
    if len(lens) and lens.min() == 0:
        last_live = np.maximum.accumulate(np.where(lens == 0, -1, np.arange(len(lens))))
        classes = np.where(last_live < 0, np.int8(OrderClass.DECODE), classes[last_live])
    return classes


def validate_order(shape: BatchShape, rule: SplitRule) -> None:
    """Raise if the rows do not stand in the order that the division relies on.

    Order classes never fall. Under ``require_uniform``, no decode follows a shorter one: the first row's length
    decides, and one short row in front would make prefills of all real decodes.

    Raises:
        InvalidBatch: Names the first row that stands too late.

    Sync: none.
    Source: vLLM 0.32.0 v1/attention/backends/utils.py, split_decodes_and_prefills, which assumes it.
    """
    if not rule.require_uniform and shape.is_prefilling is None and _plainly_ordered(shape, rule.threshold):
        return
    classes = order_classes(shape, rule.threshold)
    falls = classes[1:] < classes[:-1]
    if falls.any():
        row = int(falls.argmax()) + 1
        before, here = OrderClass(int(classes[row - 1])), OrderClass(int(classes[row]))
        raise InvalidBatch(
            "order of requests",
            {"expected": f"at least {before.name} as in row {row - 1}", "got": f"{here.name}"},
            row=row,
            help="order rows as decode, short extend, long extend, prefill",
        )
    if rule.require_uniform:
        _validate_longest_first(shape, classes)


def _plainly_ordered(shape: BatchShape, threshold: int) -> bool:
    """Return whether rows above the threshold follow the others and rows without context are last: a quick yes.

    Padding rows may make it a no, which decides nothing.
    """
    lens = shape.query_lens if shape.split_query_lens is None else shape.split_query_lens
    cached = int(np.count_nonzero(shape.context_lens))
    if cached < shape.num_reqs and np.count_nonzero(shape.context_lens[cached:]):
        return False
    if shape.max_query_len <= threshold:
        return True
    is_long = lens[:cached] > threshold
    short = cached - int(np.count_nonzero(is_long))
    return bool(np.count_nonzero(is_long[short:]) == cached - short)


def _validate_longest_first(shape: BatchShape, classes: NDArray[np.int8]) -> None:
    """Raise if a live decode row is longer than a decode row before it."""
    lens = shape.query_lens if shape.split_query_lens is None else shape.split_query_lens
    rows = np.flatnonzero((classes == OrderClass.DECODE) & (lens > 0))
    rises = lens[rows[1:]] > lens[rows[:-1]]
    if rises.any():
        row = int(rows[1:][rises.argmax()])
        raise InvalidBatch(
            "order of requests",
            {"expected": "no decode longer than one before it, in a uniform split", "got": f"{lens[row]} tokens"},
            row=row,
            help="put rows of the full decode length first",
        )
