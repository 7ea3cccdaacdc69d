"""The larger subcommands, one a file. Each has ``add``, which declares it to argparse."""

from __future__ import annotations

import argparse

from . import check, convert, copy, dequantize, diagnose, diff, error_table, info, quantize, show, validate


def add_all(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare all of them."""
    for module in (
        info,
        show,
        validate,
        copy,
        convert,
        quantize,
        dequantize,
        diff,
        check,
        diagnose,
        error_table,
    ):
        module.add(commands)
