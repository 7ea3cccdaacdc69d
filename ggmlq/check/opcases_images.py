"""Cases of images, sound and video: convolutions, windows, pools, other sizes, relative positions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from .sketch import Sketch, cases

WINDOWS = ((1, 0, 1), (2, 1, 1), (1, 2, 2))  # strides, pads, dilations
CORNERS, SMOOTH = 1 << 8, 1 << 9  # flags of a mode: align corners, antialias


@cases("OUT_PROD")
def out_prod(s: Sketch) -> Iterator[str]:
    """Outer products, the first tensor serving several of the second; also of blocks."""
    s.call("out_prod", s.leaf(20, 7, 2, 3), s.leaf(17, 7, 4, 6))
    yield "[20,7,2,3] and [17,7,4,6]"
    for m, n, p, outer in ((5, 7, 3, (1, 1)), (33, 20, 17, (2, 3)), (16, 1, 16, (1, 1)), (64, 35, 9, (1, 2))):
        s.call("out_prod", s.leaf(m, n), s.leaf(p, n, *outer))
        yield f"[{m},{n}] and [{p},{n},{outer[0]},{outer[1]}]"
    for kind in ("q8_0", "q4_0"):
        s.call("out_prod", s.leaf(64, 20, type=kind), s.leaf(17, 20))
        yield f"{kind}, [64,20] and [17,20,1,1]"
    s.call("out_prod", s.leaf(20, 9), s.transposed(17, 9))
    yield "[20,9] and [17,9,1,1], transposed"


@cases("IM2COL")
def im2col(s: Sketch) -> Iterator[str]:
    """Windows of images and of rows, with strides, pads and dilations that differ along the axes."""
    for kind, flat in product(("f16", "f32"), (True, False)):
        for step, pad, apart in WINDOWS:
            kernel = s.leaf(3, 2, 4, 5, type=kind) if flat else s.leaf(3, 4, 5, type=kind)
            x = s.leaf(11, 9, 4, 2) if flat else s.leaf(11, 4, 2)
            rest = (step, step, pad, pad, apart, apart) if flat else (step, 0, pad, 0, apart, 0)
            s.call("im2col", kernel, x, *rest, flat, {"f32": 0, "f16": 1}[kind])
            yield f"{kind}, {'2-D' if flat else '1-D'}, s={step} p={pad} d={apart}"
    for look in ("leaf", "apart"):
        kernel, x = s.leaf(2, 3, 3, 4, type="f16"), getattr(s, look)(13, 8, 3, 2)
        s.call("im2col", kernel, x, 1, 2, 0, 3, 2, 1, True, 1)
        yield f"f16, 2-D, s=1,2 p=0,3 d=2,1, {look}"


@cases("IM2COL_3D", "im2col_3d", 4)
@cases("CONV_3D", "conv_3d_direct", 5)
def films(s: Sketch, function: str, kernels: int) -> Iterator[str]:
    """Windows and convolutions of films along three axes, for two channels and three pictures."""
    for kind in ("f16", "f32"):
        for step, pad, apart in WINDOWS:
            kernel, x = s.leaf(3, 2, 2, 2 * kernels, type=kind), s.leaf(9, 8, 7, 2 * 3)
            rest = (step, step, step, pad, pad, pad, apart, apart, apart)
            if function == "im2col_3d":
                s.call(function, kernel, x, 2, *rest, {"f32": 0, "f16": 1}[kind])
            else:
                s.call(function, kernel, x, *rest, 2, 3, kernels)
            yield f"{kind}, s={step} p={pad} d={apart}"


@cases("CONV_2D", "conv_2d_direct")
@cases("CONV_2D_DW", "conv_2d_dw_direct", alone=True)
def conv_2d(s: Sketch, function: str, alone: bool = False) -> Iterator[str]:
    """Cases of convolutions, over all channels or each by itself."""
    for kind in ("f32", "f16"):
        for step, pad, apart in WINDOWS:
            kernel = s.leaf(3, 2, *((1, 4) if alone else (4, 5)), type=kind)
            s.call(function, kernel, s.leaf(17, 9, 4, 2), step, step, pad, pad, apart, apart)
            yield f"{kind}, s={step} p={pad} d={apart}"
    for channels in (3, 33):
        kernel = s.leaf(2, 3, *((1, channels) if alone else (channels, 2)))
        s.call(function, kernel, s.leaf(12, 10, channels, 2), 1, 2, 0, 1, 2, 1)
        yield f"f32, {channels} channels, s=1,2 p=0,1 d=2,1"
    for channels in (1, 8, 16, 20, 33, 64, 100) if alone else ():  # they are neighbours in memory
        x = s.call("permute", s.leaf(channels, 9, 7, 2), 2, 0, 1, 3)
        kernel = s.call("permute", s.leaf(channels, 1, 3, 2), 3, 2, 0, 1)
        apart = 1 + (channels in (20, 64))
        s.call(function, kernel, x, 1, 2, 1, 0, apart, 1)
        yield f"f32, {channels} channels that are neighbours{', d=2,1' if apart > 1 else ''}"


@cases("CONV_TRANSPOSE_1D")
def transposed(s: Sketch) -> Iterator[str]:
    """Transposed convolutions of rows."""
    for kind, step in product(("f32", "f16"), (1, 2, 5)):
        for inner, outer in ((6, 3), (33, 2)):
            kernel, x = s.leaf(4, outer, inner, type=kind), s.leaf(13, inner)
            s.call("conv_transpose_1d", kernel, x, step, 0, 1)
            yield f"{kind}, {inner} to {outer} channels, s={step}"


@cases("CONV_TRANSPOSE_2D")
def transposed_2d(s: Sketch) -> Iterator[str]:
    """Transposed convolutions of images."""
    for step, (inner, outer), images in product((1, 2, 3), ((4, 5), (33, 2)), (1, 2)):
        kernel, x = s.leaf(3, 2, outer, inner, type="f16"), s.leaf(7, 6, inner, images)
        s.call("conv_transpose_2d_p0", kernel, x, step)
        yield f"{inner} to {outer} channels, s={step}, {images} images"


@cases("COL2IM_1D")
def columns(s: Sketch) -> Iterator[str]:
    """Columns that are added up into rows, some cut off at both ends."""
    for kind, (size, step, crop) in product(("f32", "f16"), ((4, 2, 0), (3, 3, 1), (5, 1, 2), (16, 8, 4))):
        s.call("col2im_1d", s.leaf(size * 3, 13, type=kind), step, 3, crop)
        yield f"{kind}, k={size} s={step} p={crop}, 3 channels"


@cases("POOL_2D")
def pools(s: Sketch) -> Iterator[str]:
    """Means and maxima of windows of images."""
    for how, size, step, pad in product((0, 1), (2, 3), (1, 2), (0, 1)):
        s.call("pool_2d", s.leaf(11, 9, 3), how, size, size, step, step, float(pad), float(pad))
        yield f"{'mean' if how else 'max'}, k={size} s={step} p={pad}"
    for how in (0, 1):
        s.call("pool_2d", s.leaf(13, 9, 3, 2), how, 3, 2, 2, 1, 1.0, 0.0)
        yield f"{'mean' if how else 'max'}, k=3,2 s=2,1 p=1,0, 2 images"


@cases("POOL_1D")
def pool_1d(s: Sketch) -> Iterator[str]:
    """Means and maxima of windows of rows."""
    for how, size in product((0, 1), (2, 5)):
        s.call("pool_1d", s.leaf(20, 3), how, size, size, 0)
        yield f"{'mean' if how else 'max'}, k={size}"
    for how, (size, step, pad) in product((0, 1), ((3, 2, 1), (5, 3, 2), (2, 3, 0), (4, 1, 2))):
        s.call("pool_1d", s.leaf(33, 5, 2), how, size, step, pad)
        yield f"{'mean' if how else 'max'}, k={size} s={step} p={pad}"


SIZES = ((22, 18), (17, 31), (5, 4), (11, 1), (1, 9))


@cases("UPSCALE")
def upscale(s: Sketch) -> Iterator[str]:
    """Images of other sizes: nearest pixels, means of two, four and more; of one row, column and pixel."""
    for mode, (width, height) in product((0, 1, 1 | CORNERS, 2, 2 | CORNERS, 1 | SMOOTH), SIZES):
        s.call("interpolate", s.leaf(11, 9, 3), width, height, 3, 1, mode)
        yield f"mode {mode}, 11x9 to {width}x{height}"
    for mode, (w, h) in product((0, 1, 1 | CORNERS, 2 | CORNERS), ((1, 7), (6, 1), (1, 1))):
        s.call("interpolate", s.apart(w, h, 2, 2), 2 * w, 3 * h, 2, 2, mode)
        yield f"mode {mode}, {w}x{h} to {2 * w}x{3 * h}, rows apart"
    for mode in (0, 1):
        s.call("upscale", s.leaf(7, 5, 3, 2), 3, mode)
        yield f"mode {mode}, 7x5 three times as large"


@cases("TIMESTEP_EMBEDDING")
def timestep(s: Sketch) -> Iterator[str]:
    """Times as cosines and sines, in even numbers of them and odd."""
    for dim in (1, 2, 15, 20, 33, 320):
        s.call("timestep_embedding", s.leaf(5, data="positive"), dim, 10000)
        yield f"dim {dim}"


IMAGES = ((14, 14, 7), (15, 13, 7), (5, 9, 4), (1, 1, 3), (64, 64, 14), (3, 8, 1))  # wide, high, window


@cases("WIN_PART")
def win_part(s: Sketch) -> Iterator[str]:
    """Images that windows fill, and others."""
    for n, (wide, high, width) in product((1, 17, 64), IMAGES):
        s.call("win_part", s.leaf(n, wide, high), width)
        yield f"{wide}x{high} of {n}, windows of {width}"


@cases("WIN_UNPART")
def win_unpart(s: Sketch) -> Iterator[str]:
    """Windows to images that they fill, and others."""
    for n, (wide, high, width) in product((1, 17, 64), IMAGES):
        windows = -(-wide // width) * -(-high // width)
        s.call("win_unpart", s.leaf(n, width, width, windows), wide, high, width)
        yield f"{wide}x{high} of {n}, windows of {width}"


@cases("GET_REL_POS")
def get_rel_pos(s: Sketch) -> Iterator[str]:
    """Tables of halves, square."""
    for width, n in product((1, 17, 64), (1, 2, 7, 14, 64)):
        s.call("get_rel_pos", s.leaf(width, 2 * n - 1, type="f16"), n, n)
        yield f"{n} positions, rows of {width}"


@cases("ADD_REL_POS")
def add_rel_pos(s: Sketch) -> Iterator[str]:
    """Patches of images, each pixel with all others."""
    for n, patches in product((1, 2, 7, 14), (1, 2, 5)):
        for place in ("", "_inplace"):
            x = s.leaf(n * n, n * n, patches)
            s.call(f"add_rel_pos{place}", x, *(s.leaf(n, n, n, patches) for _ in "wh"))
            yield f"{patches} patches of {n}x{n}{', in place' if place else ''}"
