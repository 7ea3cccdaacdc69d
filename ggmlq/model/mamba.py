"""Mamba 2 as a part of layers: a short convolution, a scan over a state, a gate and a norm of groups."""

from __future__ import annotations

import numpy as np

from .arithmetic.kernels import Array
from .config import Config, Facts
from .recurrence import convolution, pasts
from .step import Step
from .weights import Frame, columns


def mamba2(step: Step, x: Array, i: int) -> Array:
    """The results of Mamba 2 for rows [T, width]."""
    a, count, stem, vector = step.a, len(x), f"blk.{i}", step.weights.vector
    (_, whole), (heads, width, state) = step.config.state
    inner, groups = heads * width, len(vector(f"{stem}.ssm_norm.weight"))
    z, mixed, speed = columns(step.product(x, "ssm_in", i), [inner, whole, heads])
    mixed = convolution(step, mixed, "ssm_conv1d", i, "conv_output_raw")
    if (bias := step.weights.optional(f"{stem}.ssm_conv1d.bias")) is not None:
        mixed = mixed + bias
    values, keys, queries = columns(a.silu(mixed), [inner, groups * state, groups * state])
    values = values.reshape(count, heads, width)
    of = np.arange(heads) // (heads // groups)
    keys, queries = (part.reshape(count, groups, state)[:, of] for part in (keys, queries))
    speed = a.softplus(speed + vector(f"{stem}.ssm_dt.bias"))
    decay = np.exp(speed * vector(f"{stem}.ssm_a")[:, 0])
    y = a.scanned(values * speed[..., None], keys, queries, decay, pasts(step, i, values))
    y = step.tell("mamba2_y_add_d", y + values * vector(f"{stem}.ssm_d"), i)
    y = a.gated("silu", z, y.reshape(count, -1)).reshape(count, groups, -1)
    y = step.tell("norm", a.norm(y, step.config.epsilon), i) * vector(f"{stem}.ssm_norm.weight")
    return step.product(y.reshape(count, -1), "ssm_out", i, "mamba_out")


def tensors(frame: Frame) -> None:
    """The tensors of Mamba 2."""
    (taps, whole), (heads, width, state) = frame.config.state
    inner, columns_in = heads * width, frame.config.width
    groups = (whole - inner) // (2 * state)
    frame.matrix("ssm_in", inner + whole + heads, columns_in, bias=False)
    frame.tensor("ssm_conv1d.weight", whole, taps + 1)
    if frame.has("ssm_conv1d.bias"):
        frame.tensor("ssm_conv1d.bias", whole)
    frame.tensor("ssm_dt.bias", heads)
    frame.tensor("ssm_a", heads, 1)
    frame.tensor("ssm_d", heads, 1)
    frame.tensor("ssm_norm.weight", groups, inner // groups)
    frame.matrix("ssm_out", columns_in, inner, bias=False)


def state_of(c: Config, facts: Facts) -> tuple[tuple[int, ...], ...]:
    """The shapes of a layer's state, where some layers have no keys."""
    if 0 not in c.kv_heads:
        return ()
    inner, heads, state = (
        facts.number(f"ssm.{key}") for key in ("inner_size", "time_step_rank", "state_size")
    )
    groups, taps = facts.number("ssm.group_count"), facts.number("ssm.conv_kernel")
    if inner % heads:
        raise facts.wrong("ssm.inner_size", f"it is a multiple of the {heads} heads")
    if heads % groups:
        raise facts.wrong("ssm.group_count", f"heads are a multiple of it, here {heads}")
    return (taps - 1, inner + 2 * groups * state), (heads, inner // heads, state)
