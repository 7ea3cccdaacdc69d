"""Slots of recorded launches: labelled arrays and their views, on the host and in the guise of a GPU's."""

from __future__ import annotations

import numpy as np
import pytest
from fake_cupy import on_device

from ggmlq.base.slots import Slot, labelled, slot_of


@pytest.fixture(params=["host", "device"])
def array(request):
    """Floats [6, 8]."""
    values = np.arange(48, dtype=np.float32).reshape(6, 8)
    return values if request.param == "host" else on_device(values)


def test_views_know_their_offset(array):
    view = labelled(array, Slot(2, 100))
    assert slot_of(view) == Slot(2, 100)
    assert slot_of(view[1:]) == Slot(2, 132)
    assert slot_of(view.view(np.uint8)[2, 5:]) == Slot(2, 169)
    assert slot_of(view.reshape(-1)[3:].reshape(9, 5)) == Slot(2, 112)
    assert slot_of(view[:, ::-1][1:]) == Slot(2, 160)
    assert slot_of(labelled(array[::-1], Slot(1))[-1]) == Slot(1, -160)
    assert np.shares_memory(view, array)


def test_others_have_none(array):
    view = labelled(array, Slot(0))
    assert slot_of(array) is None
    assert slot_of(array[1:]) is None
    for copied in (view.copy(), view.astype(np.float64), view + 1, np.array(view)):
        assert slot_of(copied) is None
    assert slot_of(labelled(view, Slot(1))) == Slot(1)
    assert slot_of(view) == Slot(0)


def test_conversions_that_copy_nothing(array):
    view = labelled(array, Slot(3))
    for same in (np.asarray(view), np.ascontiguousarray(view, np.float32), np.asarray(view).reshape(-1)):
        assert slot_of(same[0:]) == Slot(3)
    assert slot_of(np.asarray(view)[2:]) == Slot(3, 64)


def test_empty_ones():
    assert slot_of(labelled(np.empty((0, 4)), Slot(1))) == Slot(1)
    assert slot_of(labelled(np.empty(()), Slot(1))) == Slot(1)
