"""The larger subcommands, one a file. Each has ``add``, which declares it to argparse."""

from __future__ import annotations

import argparse

from . import (
    check,
    copy,
    dequantize,
    diagnose,
    diff,
    error_table,
    imatrix,
    info,
    metadata,
    quantize,
    show,
    validate,
)


def add_all(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare all of them."""
    files = (info, show, validate, metadata, copy, quantize, dequantize, imatrix, diff)
    for module in (*files, check, diagnose, error_table):
        module.add(commands)
