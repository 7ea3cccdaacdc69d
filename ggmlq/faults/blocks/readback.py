"""The doctor's search in weights that a kernel shows as they are.

Every mistake is compared with all weights at once. Where none gives them, codes, scales and offsets are read
back from the values, and what differs says which part is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np

from ...arrays.array import QuantArray
from ...formats import BlockFormat, Format
from ..findings import Finding, Mistake
from ..numbers import HALF, Mask, Wide, half
from ..probe import Compared, along, sentences
from .books import grid_of, row_numbers
from .formulas import low_bits
from .operand import Operand
from .rounding import Rounding, near
from .tables import numbers_of, table_of
from .weights import mistakes, short_rows, wrong_strides

NEARLY = 0.995  # of all weights that a mistake must give
EXPLAINED = 0.98  # of the wrong weights that it must explain
WHOLE = 0.05  # how far a code that was read back may be from an integer
ROUNDED = 0.2  # how far all may be from their own codes, if digits are lost alone
FEW = 6  # examples
TIE = 1e-4  # of the weights, by which two mistakes may differ and count as equal


class Part:
    """Some rows of a matrix, examined closely."""

    def __init__(
        self, q: QuantArray, w: Operand, rounding: Rounding, excused: Mask, survey: Compared, rows: Any
    ) -> None:
        """The operand ``w`` and the mask ``excused`` are cut to the rows already."""
        self.fmt: Format = q.format
        self.rounding, self.rows, self.w, self.excused = rounding, rows, w, excused
        self.raw, self.blocks = np.asarray(q.raw).reshape(q.shape[0], -1), q.blocks
        self.used, self.right, self.wrong, self.limit = (part[rows] for part in survey)

    # --- mistakes tried one after the other -----------------------------------------------------

    def finding(self) -> Finding:
        """The surest finding: a mistake in all weights, in a table, in a part of them; parts read back."""
        if not self.used.any():
            return Finding("unwritten", 0.9, "all of them are zero")
        whole, partly = self._replayed()
        return whole or self._of_tables() or partly or self._read_back()

    def _replayed(self) -> tuple[Finding | None, Finding | None]:
        """The findings of the mistakes that give nearly all weights, and nearly all of the wrong ones."""
        whole: list[tuple[float, Mistake[Operand]]] = []
        partly: list[tuple[float, Mistake[Operand]]] = []
        for m in self._tried():
            with np.errstate(all="ignore"):
                fits = near(self.used, m.replay.dense, self.rounding.limits(m.replay)) | self.excused
            seen = slice(None) if m.columns is None else m.columns
            fits, wrong = fits[seen], self.wrong[seen]
            if not wrong.any() or wrong.sum() < self.wrong.sum() / 2:
                continue
            explained, share = fits[wrong].mean(), float(fits.mean())
            if share >= NEARLY and explained >= EXPLAINED:
                whole.append((share, m))
            elif (
                wrong.sum() >= 16
                and explained >= NEARLY
                and m.fault != "scaled"
                and m.replay.dense[seen][wrong].any()
            ):
                partly.append((share, m))
        return _best(whole, ""), _best(partly, ", in a part of the weights alone")

    def _tried(self) -> Iterator[Mistake[Operand]]:
        return chain(
            mistakes(self.fmt, self.blocks, self.rows),
            wrong_strides(self.fmt, self.raw, self.rows),
            short_rows(self.w, self.right.shape[1]),
            self._simple(),
        )

    def _simple(self) -> Iterator[Mistake[Operand]]:
        """One factor for all, values or scales rounded on the way."""
        w = self.w
        big = self.wrong & np.isfinite(self.used) & np.isfinite(self.right) & (self.right != 0)
        if big.sum() >= 4:
            factor = float(np.median(self.used[big] / self.right[big]))
            if np.isfinite(factor) and abs(factor) > 1e-6 and abs(factor - 1) > 1e-5:
                yield Mistake("scaled", f"{factor:.6g} times the right ones", w.but(values=factor * w.dense))
        if self.rounding.unit < HALF:
            yield Mistake("value-rounding", "values become halves", w.kept_as("f16"))
            yield Mistake("value-rounding", "values become bfloat16", w.kept_as("bf16"))
            if w.values is None:
                yield Mistake("scale-rounding", "scales become halves", w.but(scale=half(w.scale)))
                yield Mistake("scale-rounding", "scales and offsets become halves", w.with_half_scales())

    # --- parts read back from the values --------------------------------------------------------

    def _of_tables(self) -> Finding | None:
        """The finding that entries of a table, of a grid or of the exponents are others."""
        if not isinstance(self.fmt, BlockFormat) or not np.isfinite(self.used).all():
            return None
        return self._book() or self._exponent()

    def _read_back(self) -> Finding:
        """The finding by the part that differs: codes, scales, offsets; unknown where none fits."""
        nothing = self.wrong & (self.used == 0)
        wild = self.wrong & ~np.isfinite(self.used) & np.isfinite(self.right)
        if nothing.sum() >= EXPLAINED * self.wrong.sum():
            return Finding("unwritten", 0.7, f"they are zero: {self._places(self.wrong)}")
        if wild.sum() >= EXPLAINED * self.wrong.sum():
            if (self.used == np.copysign(np.inf, self.right))[wild].all():  # 0 · (1/0) would be NaN
                text = f"infinities with the right signs, {self._places(wild)}"
                return Finding("scale-f16-overflow", 0.8, text)
            return Finding("nan", 0.75, f"not finite, {self._places(wild)}")
        if isinstance(self.fmt, BlockFormat) and np.isfinite(self.used).all():
            for look in (self._rounded, self._codes, self._scales):
                finding = look()
                if finding is not None:
                    return finding
        text = self._sentence()
        moved = "those of other elements of K" in text
        return Finding("nibble-order" if moved else "unknown", 0.75 if moved else 0.5, text)

    def _places(self, wrong: Mask) -> str:
        """The elements of a block that are wrong, as ranges."""
        block = getattr(self.fmt, "block_size", 1)
        at = np.flatnonzero(wrong.reshape(-1, block).any(axis=0))
        places = "all elements" if len(at) == block else along("element", at, np.arange(block))
        return f"{len(at)} of each {block}, {places}"

    def _sentence(self) -> str:
        finite = np.isfinite(self.used) & np.isfinite(self.right)
        compared = Compared(
            np.where(self.wrong & finite, self.used, self.right), self.right, self.wrong & finite, self.limit
        )
        block = max(getattr(self.fmt, "block_size", 32), 32)
        if not compared.wrong.any() or not np.isfinite(self.right).all():
            return self._places(self.wrong)
        of_blocks = self.w if isinstance(self.fmt, BlockFormat) else None
        words = sentences(compared, of_blocks, np.arange(self.used.shape[1]), block)
        return " ".join([f"{self._places(self.wrong)}.", *words]).rstrip(".")

    def _stored(self) -> Wide:
        """Codes as the values show them under the right scales; NaN where the scale is zero."""
        w = self.w
        scale = w.scale.repeat(w.group, axis=1)
        with np.errstate(all="ignore"):
            codes: Wide = (self.used + w.offset.repeat(w.group, axis=1)) / scale + w.zero
        return np.where(np.isfinite(codes) & (scale != 0), codes, np.nan)

    def _book(self) -> Finding | None:
        """The finding that entries of the grid or of the table are other numbers."""
        assert isinstance(self.fmt, BlockFormat)
        book, table = grid_of(self.fmt), table_of(self.fmt)
        stored = self._stored() - self.w.zero
        if book is not None:
            codes = (self.w.stored - self.w.zero).reshape(-1, self.fmt.block_size)
            rest = np.sign(codes) if book.signed else codes - np.rint(codes / 8) * 8
            shown = stored.reshape(codes.shape)
            entries = (shown * rest if book.signed else shown - rest).reshape(-1, book.width)
            numbers, right = row_numbers(book, codes).reshape(-1), book.rows
        elif table is not None:
            entries, numbers, right = (
                stored.reshape(-1, 1),
                numbers_of(self.fmt, self.blocks[self.rows]).reshape(-1),
                table[:, None],
            )
        else:
            return None
        fitted = right.copy()
        for number in np.unique(numbers):
            some = entries[numbers == number]
            with np.errstate(all="ignore"):
                middle = np.nanmedian(some, axis=0) if np.isfinite(some).any() else right[number]
            fitted[number] = np.where(np.isfinite(middle), middle, right[number])
        off = np.abs(fitted - right) > WHOLE * np.maximum(1, np.abs(right) / 8)
        back = np.where(off, fitted, right)[numbers]
        ok = np.abs(entries - back) <= WHOLE * (1 + np.abs(back))
        known = np.isfinite(entries)
        if not off.any() or not ok[known].mean() >= EXPLAINED or off.mean() > 0.9:
            return None
        rows = np.argwhere(off)
        shown_as = ", ".join(
            f"{r}.{j}: {fitted[r, j]:.4g} for {right[r, j]:g}"
            if right.shape[1] > 1
            else f"{r}: {fitted[r, j]:.4g} for {right[r, j]:g}"
            for r, j in rows[:FEW]
        )
        name = "grid" if book is not None else "table"
        more = " …" if len(rows) > FEW else ""
        text = f"{len(rows)} of {right.size} entries of the {name} are others: {shown_as}{more}"
        return Finding("code-book", 0.95, text)

    def _exponent(self) -> Finding | None:
        """The finding that some bytes of a shared exponent mean another number."""
        assert isinstance(self.fmt, BlockFormat)
        if self.fmt.scales.table is None:
            return None
        field = self.blocks[self.rows]["e" if "e" in (self.fmt.dtype.names or ()) else "d"]
        groups = self.used.reshape(-1, self.fmt.group), self.right.reshape(-1, self.fmt.group)
        size = (groups[1] ** 2).sum(axis=1)
        with np.errstate(all="ignore"):
            ratio = (groups[0] * groups[1]).sum(axis=1) / size
            left = np.abs(groups[0] - ratio[:, None] * groups[1]).max(axis=1) <= 1e-3 * np.sqrt(size)
        seen = size > 0
        if not left[seen].mean() >= EXPLAINED:
            return None
        wrong = seen & (np.abs(ratio - 1) > 1e-3)
        bytes_, byte = np.unique(field.reshape(-1)[wrong]), field.reshape(-1)
        one = [float(np.median(ratio[wrong & (byte == b)])) for b in bytes_[:FEW]]
        words = ", ".join(f"{b}: {r:.4g} times" for b, r in zip(bytes_, one, strict=False))
        return Finding("exponent-bias", 0.9, f"scales of bytes {words}{' …' if len(bytes_) > FEW else ''}")

    def _rounded(self) -> Finding | None:
        """The finding that every value lies near its own code: digits were lost on the way."""
        off = np.abs(self._stored() - self.w.stored)
        if not np.nanmax(np.where(self.wrong, off, 0)) < ROUNDED:
            return None
        return Finding("value-rounding", 0.7, self._sentence())

    def _codes(self) -> Finding | None:
        """The finding on whole codes under right scales: moved, or with wrong high or low bits."""
        assert isinstance(self.fmt, BlockFormat)
        stored = self._stored()
        known = np.isfinite(stored)
        whole = np.rint(np.nan_to_num(stored))
        if not (np.abs(stored - whole) < WHOLE)[known & self.wrong].mean() >= EXPLAINED:
            return None
        right, block = self.w.stored, self.fmt.block_size
        differs = known & (whole != right)
        split = 2 ** low_bits(self.fmt)
        if split > 1 and (whole % split == right % split)[differs].mean() >= EXPLAINED:
            return Finding("high-bits", 0.85, self._sentence())
        full = known.reshape(-1, block).all(axis=1)
        a, b = (np.sort(codes.reshape(-1, block)[full], axis=1) for codes in (whole, right))
        if full.any() and (a == b).mean() >= EXPLAINED:
            return Finding("nibble-order", 0.85, self._sentence())
        if grid_of(self.fmt) is not None and (np.abs(whole) == np.abs(right))[known].mean() >= EXPLAINED:
            return Finding("sign-bits", 0.85, self._sentence())
        if grid_of(self.fmt) is not None:
            return Finding("grid-index", 0.6, self._sentence())
        steps = np.unique((whole - right)[differs])
        if len(steps) == 1 and self.fmt.zero:
            return Finding("offset-missing", 0.6, f"codes are off by {steps[0]:+g}")
        if split > 1 and (whole // split == right // split)[differs].mean() >= EXPLAINED:
            return Finding("nibble-order", 0.7, self._sentence())
        return Finding("codes-misread", 0.7, self._sentence())

    def _scales(self) -> Finding | None:
        """The finding that scales or offsets are wrong under right codes."""
        assert isinstance(self.fmt, BlockFormat)
        text = self._sentence()
        if "The scales that" not in text and "The constants that" not in text:
            return None
        if self.fmt.block_size > self.fmt.group:
            return Finding("sub-scale-unpack", 0.75, text)
        return Finding("scale-misread", 0.7, text)


def _best(found: list[tuple[float, Mistake[Operand]]], part: str) -> Finding | None:
    """The finding of the mistake that gives most weights; None if there is none."""
    if not found:
        return None
    found = sorted(found, key=lambda pair: -pair[0])
    share, best = found[0]
    if best.fault == "scaled":  # a factor is no cause, where another mistake explains as much
        best = next((m for s, m in found if s >= share - TIE and m.fault != "scaled"), best)
    alike = dict.fromkeys(m.fault for s, m in found if s >= share - TIE)
    others = tuple(fault for fault in alike if fault not in (best.fault, "scaled"))
    confidence = (0.75 if part else 0.98) / (1 + 0.3 * len(others))
    return Finding(
        best.fault, confidence, best.words + part, dict(best.where), alike=others, formulas=best.formulas
    )
