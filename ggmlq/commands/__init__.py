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
    info,
    logits,
    quantize,
    report,
    show,
    trace,
    validate,
)


def add_all(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare all of them."""
    judges = (check, diagnose, trace, logits)
    for module in (info, show, validate, copy, quantize, dequantize, diff, report, *judges, error_table):
        module.add(commands)
