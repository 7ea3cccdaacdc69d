"""The pytest plugin: the fixture ``ggmlq_check`` judges a function, and fails with the report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def ggmlq_check() -> Callable[..., Any]:
    """``ggmlq_check(f, "dequantize", formats=…)``, as `gq.check`: an AssertionError unless all is right."""
    from .anybody import check  # where a test asks for it: pytest loads plugins of all packages

    def judged(f: Callable[..., Any], op: str = "dequantize", **settings: Any) -> Any:
        report = check(f, op, **settings)
        if not report.ok:
            raise AssertionError(str(report))
        return report

    return judged
