"""Cases of images, sound and video: convolutions, windows, pools, other sizes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from .sketch import Cases, OpCase, Sketch

WINDOWS = ((1, 0, 1), (2, 1, 1), (1, 2, 2))  # strides, pads, dilations
CORNERS, SMOOTH = 1 << 8, 1 << 9  # flags of a mode: align corners, antialias


def out_prod(seed: int) -> Iterator[OpCase]:
    """Outer products, the first tensor serving several of the second; also of blocks."""
    for m, n, p, outer in ((5, 7, 3, (1, 1)), (33, 20, 17, (2, 3)), (16, 1, 16, (1, 1)), (64, 35, 9, (1, 2))):
        s = Sketch()
        s.call("out_prod", "tt", s.leaf(m, n), s.leaf(p, n, *outer))
        yield s.case("OUT_PROD", f"[{m},{n}] and [{p},{n},{outer[0]},{outer[1]}]", seed)
    for kind in ("q8_0", "q4_0"):
        s = Sketch()
        s.call("out_prod", "tt", s.leaf(64, 20, type=kind), s.leaf(17, 20))
        yield s.case("OUT_PROD", f"{kind}, [64,20] and [17,20,1,1]", seed)
    s = Sketch()
    s.call("out_prod", "tt", s.leaf(20, 9), s.transposed(17, 9))
    yield s.case("OUT_PROD", "[20,9] and [17,9,1,1], transposed", seed)


def im2col(seed: int) -> Iterator[OpCase]:
    """Windows of images and of rows, with strides, pads and dilations that differ along the axes."""
    for kind, flat in product(("f16", "f32"), (True, False)):
        for step, pad, spread in WINDOWS:
            s = Sketch()
            kernel = s.leaf(3, 2, 4, 5, type=kind) if flat else s.leaf(3, 4, 5, type=kind)
            x = s.leaf(11, 9, 4, 2) if flat else s.leaf(11, 4, 2)
            rest = (step, step, pad, pad, spread, spread) if flat else (step, 0, pad, 0, spread, 0)
            s.call("im2col", "ttiiiiiibi", kernel, x, *rest, flat, {"f32": 0, "f16": 1}[kind])
            yield s.case("IM2COL", f"{kind}, {'2-D' if flat else '1-D'}, s={step} p={pad} d={spread}", seed)
    for look in ("leaf", "apart"):
        s = Sketch()
        kernel, x = s.leaf(2, 3, 3, 4, type="f16"), getattr(s, look)(13, 8, 3, 2)
        s.call("im2col", "ttiiiiiibi", kernel, x, 1, 2, 0, 3, 2, 1, True, 1)
        yield s.case("IM2COL", f"f16, 2-D, s=1,2 p=0,3 d=2,1, {look}", seed)


def im2col_3d(seed: int) -> Iterator[OpCase]:
    """Windows of films, for two channels and three pictures."""
    for kind in ("f16", "f32"):
        for step, pad, spread in WINDOWS:
            s = Sketch()
            kernel, x = s.leaf(3, 2, 2, 2 * 4, type=kind), s.leaf(9, 8, 7, 2 * 3)
            rest = (step, step, step, pad, pad, pad, spread, spread, spread)
            s.call("im2col_3d", "ttliiiiiiiiii", kernel, x, 2, *rest, {"f32": 0, "f16": 1}[kind])
            yield s.case("IM2COL_3D", f"{kind}, s={step} p={pad} d={spread}", seed)


def conv_3d(seed: int) -> Iterator[OpCase]:
    """Convolutions of films along three axes."""
    for kind in ("f16", "f32"):
        for step, pad, spread in WINDOWS:
            s = Sketch()
            kernel, x = s.leaf(3, 2, 2, 2 * 5, type=kind), s.leaf(9, 8, 7, 2 * 3)
            rest = (step, step, step, pad, pad, pad, spread, spread, spread)
            s.call("conv_3d_direct", "ttiiiiiiiiiiii", kernel, x, *rest, 2, 3, 5)
            yield s.case("CONV_3D", f"{kind}, s={step} p={pad} d={spread}", seed)


def conv_2d(function: str, op: str) -> Cases:
    """Cases of convolutions, over all channels or each by itself."""

    def cases(seed: int) -> Iterator[OpCase]:
        alone = op.endswith("DW")
        for kind in ("f32", "f16"):
            for step, pad, spread in WINDOWS:
                s = Sketch()
                kernel = s.leaf(3, 2, *((1, 4) if alone else (4, 5)), type=kind)
                x = s.leaf(17, 9, 4, 2)
                s.call(function, "ttiiiiii", kernel, x, step, step, pad, pad, spread, spread)
                yield s.case(op, f"{kind}, s={step} p={pad} d={spread}", seed)
        for channels in (3, 33):
            s = Sketch()
            kernel, x = (
                s.leaf(2, 3, *((1, channels) if alone else (channels, 2))),
                s.leaf(12, 10, channels, 2),
            )
            s.call(function, "ttiiiiii", kernel, x, 1, 2, 0, 1, 2, 1)
            yield s.case(op, f"f32, {channels} channels, s=1,2 p=0,1 d=2,1", seed)
        for channels in (1, 8, 16, 20, 33, 64, 100) if alone else ():
            s = Sketch()  # channels are neighbours in memory
            x = s.call("permute", "tiiii", s.leaf(channels, 9, 7, 2), 2, 0, 1, 3)
            kernel = s.call("permute", "tiiii", s.leaf(channels, 1, 3, 2), 3, 2, 0, 1)
            s.call(function, "ttiiiiii", kernel, x, 1, 2, 1, 0, 1, 1)
            yield s.case(op, f"f32, {channels} channels that are neighbours", seed)

    return cases


def spread(seed: int) -> Iterator[OpCase]:
    """Transposed convolutions of rows."""
    for kind, step in product(("f32", "f16"), (1, 2, 5)):
        for inner, outer in ((6, 3), (33, 2)):
            s = Sketch()
            s.call(
                "conv_transpose_1d",
                "ttiii",
                s.leaf(4, outer, inner, type=kind),
                s.leaf(13, inner),
                step,
                0,
                1,
            )
            yield s.case("CONV_TRANSPOSE_1D", f"{kind}, {inner} to {outer} channels, s={step}", seed)


def spread_2d(seed: int) -> Iterator[OpCase]:
    """Transposed convolutions of images."""
    for step, (inner, outer), images in product((1, 2, 3), ((4, 5), (33, 2)), (1, 2)):
        s = Sketch()
        kernel, x = s.leaf(3, 2, outer, inner, type="f16"), s.leaf(7, 6, inner, images)
        s.call("conv_transpose_2d_p0", "tti", kernel, x, step)
        yield s.case("CONV_TRANSPOSE_2D", f"{inner} to {outer} channels, s={step}, {images} images", seed)


def columns(seed: int) -> Iterator[OpCase]:
    """Columns that are added up into rows, some cut off at both ends."""
    for kind, (size, step, crop) in product(("f32", "f16"), ((4, 2, 0), (3, 3, 1), (5, 1, 2), (16, 8, 4))):
        s = Sketch()
        s.call("col2im_1d", "tiii", s.leaf(size * 3, 13, type=kind), step, 3, crop)
        yield s.case("COL2IM_1D", f"{kind}, k={size} s={step} p={crop}, 3 channels", seed)


def pools(seed: int) -> Iterator[OpCase]:
    """Means and maxima of windows of images."""
    for how, size, step, pad in product((0, 1), (2, 3), (1, 2), (0, 1)):
        s = Sketch()
        s.call("pool_2d", "tiiiiiff", s.leaf(11, 9, 3), how, size, size, step, step, float(pad), float(pad))
        yield s.case("POOL_2D", f"{'mean' if how else 'max'}, k={size} s={step} p={pad}", seed)
    for how in (0, 1):
        s = Sketch()
        s.call("pool_2d", "tiiiiiff", s.leaf(13, 9, 3, 2), how, 3, 2, 2, 1, 1.0, 0.0)
        yield s.case("POOL_2D", f"{'mean' if how else 'max'}, k=3,2 s=2,1 p=1,0, 2 images", seed)


def pool_1d(seed: int) -> Iterator[OpCase]:
    """Means and maxima of windows of rows."""
    for how, size in product((0, 1), (2, 5)):
        s = Sketch()
        s.call("pool_1d", "tiiii", s.leaf(20, 3), how, size, size, 0)
        yield s.case("POOL_1D", f"{'mean' if how else 'max'}, k={size}", seed)
    for how, (size, step, pad) in product((0, 1), ((3, 2, 1), (5, 3, 2), (2, 3, 0), (4, 1, 2))):
        s = Sketch()
        s.call("pool_1d", "tiiii", s.leaf(33, 5, 2), how, size, step, pad)
        yield s.case("POOL_1D", f"{'mean' if how else 'max'}, k={size} s={step} p={pad}", seed)


SIZES = ((22, 18), (17, 31), (5, 4), (11, 1), (1, 9))


def upscale(seed: int) -> Iterator[OpCase]:
    """Images of other sizes: nearest pixels, means of two, four and more; of one row, column and pixel."""
    for mode, (width, height) in product((0, 1, 1 | CORNERS, 2, 2 | CORNERS, 1 | SMOOTH), SIZES):
        s = Sketch()
        s.call("interpolate", "tlllli", s.leaf(11, 9, 3), width, height, 3, 1, mode)
        yield s.case("UPSCALE", f"mode {mode}, 11x9 to {width}x{height}", seed)
    for mode, (w, h) in product((0, 1, 1 | CORNERS, 2 | CORNERS), ((1, 7), (6, 1), (1, 1))):
        s = Sketch()
        s.call("interpolate", "tlllli", s.apart(w, h, 2, 2), 2 * w, 3 * h, 2, 2, mode)
        yield s.case("UPSCALE", f"mode {mode}, {w}x{h} to {2 * w}x{3 * h}, rows apart", seed)
    for mode in (0, 1):
        s = Sketch()
        s.call("upscale", "tii", s.leaf(7, 5, 3, 2), 3, mode)
        yield s.case("UPSCALE", f"mode {mode}, 7x5 three times as large", seed)


def timestep(seed: int) -> Iterator[OpCase]:
    """Times as cosines and sines, in even numbers of them and odd."""
    for dim in (1, 2, 15, 20, 33, 320):
        s = Sketch()
        s.call("timestep_embedding", "tii", s.leaf(5, data="positive"), dim, 10000)
        yield s.case("TIMESTEP_EMBEDDING", f"dim {dim}", seed)


def images() -> dict[str, Cases]:
    """Cases of this file by operation."""
    return {
        "OUT_PROD": out_prod, "IM2COL": im2col, "IM2COL_3D": im2col_3d, "CONV_3D": conv_3d,
        "CONV_2D": conv_2d("conv_2d_direct", "CONV_2D"),
        "CONV_2D_DW": conv_2d("conv_2d_dw_direct", "CONV_2D_DW"),
        "CONV_TRANSPOSE_1D": spread, "CONV_TRANSPOSE_2D": spread_2d, "COL2IM_1D": columns, "POOL_2D": pools,
        "POOL_1D": pool_1d, "UPSCALE": upscale, "TIMESTEP_EMBEDDING": timestep,
    }  # fmt: skip
