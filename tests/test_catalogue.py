"""The table of formats against an independent one typed here from ggml's headers."""

from __future__ import annotations

import copy
import io
import pickle

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.formats import FORMATS, REMOVED, BlockFormat
from ggmlq.formats.format import Parts

# id, elements a block, bytes, fields of the C struct in order ("d:f2" is ggml_half d).
TABLE = {
    "f32": (0, 1, 4, None),
    "f16": (1, 1, 2, None),
    "q4_0": (2, 32, 18, "d:f2 qs:u1*16"),
    "q4_1": (3, 32, 20, "d:f2 m:f2 qs:u1*16"),
    "q5_0": (6, 32, 22, "d:f2 qh:u1*4 qs:u1*16"),
    "q5_1": (7, 32, 24, "d:f2 m:f2 qh:u1*4 qs:u1*16"),
    "q8_0": (8, 32, 34, "d:f2 qs:i1*32"),
    "q8_1": (9, 32, 36, "d:f2 s:f2 qs:i1*32"),
    "q2_K": (10, 256, 84, "scales:u1*16 qs:u1*64 d:f2 dmin:f2"),
    "q3_K": (11, 256, 110, "hmask:u1*32 qs:u1*64 scales:u1*12 d:f2"),
    "q4_K": (12, 256, 144, "d:f2 dmin:f2 scales:u1*12 qs:u1*128"),
    "q5_K": (13, 256, 176, "d:f2 dmin:f2 scales:u1*12 qh:u1*32 qs:u1*128"),
    "q6_K": (14, 256, 210, "ql:u1*128 qh:u1*64 scales:i1*16 d:f2"),
    "q8_K": (15, 256, 292, "d:f4 qs:i1*256 bsums:i2*16"),
    "iq2_xxs": (16, 256, 66, "d:f2 qs:u2*32"),
    "iq2_xs": (17, 256, 74, "d:f2 qs:u2*32 scales:u1*8"),
    "iq3_xxs": (18, 256, 98, "d:f2 qs:u1*96"),
    "iq1_s": (19, 256, 50, "d:f2 qs:u1*32 qh:u2*8"),
    "iq4_nl": (20, 32, 18, "d:f2 qs:u1*16"),
    "iq3_s": (21, 256, 110, "d:f2 qs:u1*64 qh:u1*8 signs:u1*32 scales:u1*4"),
    "iq2_s": (22, 256, 82, "d:f2 qs:u1*64 qh:u1*8 scales:u1*8"),
    "iq4_xs": (23, 256, 136, "d:f2 scales_h:u2 scales_l:u1*4 qs:u1*128"),
    "i8": (24, 1, 1, None),
    "i16": (25, 1, 2, None),
    "i32": (26, 1, 4, None),
    "i64": (27, 1, 8, None),
    "f64": (28, 1, 8, None),
    "iq1_m": (29, 256, 56, "qs:u1*32 qh:u1*16 scales:u1*8"),
    "bf16": (30, 1, 2, None),
    "tq1_0": (34, 256, 54, "qs:u1*48 qh:u1*4 d:f2"),
    "tq2_0": (35, 256, 66, "qs:u1*64 d:f2"),
    "mxfp4": (39, 32, 17, "e:u1 qs:u1*16"),
    "nvfp4": (40, 64, 36, "d:u1*4 qs:u1*32"),
    "q1_0": (41, 128, 18, "d:f2 qs:u1*16"),
    "q2_0": (42, 64, 18, "d:f2 qs:u1*16"),
}
ENCODED = {"f32", "f16", "bf16", "q1_0", "q2_0", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q8_1", "q8_K"}
ENCODED |= {"mxfp4", "nvfp4", "tq1_0", "tq2_0", "q2_K", "q3_K", "q4_K", "q5_K", "q6_K", "iq4_nl", "iq4_xs"}
ENCODED |= {"iq3_s", "iq3_xxs", "iq2_s", "iq2_xs", "iq2_xxs", "iq1_m", "iq1_s"}


def test_names_stand_in_the_order_of_ids():
    assert list(gq.formats) == list(TABLE)
    assert len(gq.formats) == 35


def test_live_and_removed_ids_make_ggmls_count():
    ids = {fmt.id for fmt in gq.formats.values()}
    assert ids | set(REMOVED) == set(range(43))
    assert not ids & set(REMOVED)


@pytest.mark.parametrize("name", TABLE)
def test_layout(name):
    id_, block, size, fields = TABLE[name]
    fmt = gq.formats[name]
    assert (fmt.name, fmt.id, fmt.block_size, fmt.dtype.itemsize) == (name, id_, block, size)
    assert fmt.bits_per_weight == 8 * size / block
    assert fmt.can_quantize is (name in ENCODED)
    assert fmt.needs_imatrix is (name in ("iq2_xxs", "iq2_xs", "iq1_s"))
    if fields is not None:
        stated = [
            f"{field}:{kind.base.str.lstrip('<|')}" + (f"*{kind.shape[0]}" if kind.shape else "")
            for field, (kind, *_) in fmt.dtype.fields.items()
        ]
        assert " ".join(stated) == fields


@pytest.mark.parametrize("name", TABLE)
def test_dtype_is_plain_data(name):
    """NumPy can save it and lend it out: no field overlaps another."""
    blocks = np.zeros(3, gq.formats[name].dtype)
    file = io.BytesIO()
    np.save(file, blocks, allow_pickle=False)
    file.seek(0)
    assert np.load(file, allow_pickle=False).dtype == blocks.dtype
    assert memoryview(blocks).nbytes == blocks.nbytes


@pytest.mark.parametrize(
    ("name", "union", "parts"),
    [("q8_1", "ds", ("d", "s")), ("q4_1", "dm", ("d", "m")), ("q5_1", "dm", ("d", "m")),
     ("q2_K", "dm", ("d", "dmin")), ("q4_K", "dm", ("d", "dmin")), ("q5_K", "dm", ("d", "dmin"))],
)  # fmt: skip
def test_half2_view(name, union, parts):
    fmt = gq.formats[name]
    blocks = np.zeros(2, fmt.dtype)
    blocks[parts[0]], blocks[parts[1]] = 3, -5
    pair = blocks.view(fmt.half2_dtype)[union]
    assert fmt.half2_dtype.itemsize == fmt.dtype.itemsize
    assert pair.tolist() == [[3, -5], [3, -5]]
    rest = [field for field in fmt.dtype.names if field not in parts]
    assert [field for field in fmt.half2_dtype.names if field != union] == rest


def test_formats_without_a_union_have_no_half2_view():
    assert gq.formats["q4_0"].half2_dtype is None
    assert gq.formats["f16"].half2_dtype is None


def test_a_format_is_found_by_any_of_its_names():
    q4_k = gq.formats["q4_K"]
    for key in ("q4_k", "Q4_K", 12, np.int32(12), q4_k):
        assert gq.formats[key] is q4_k
    from gguf import GGMLQuantizationType

    assert gq.formats[GGMLQuantizationType.Q4_K] is q4_k
    assert "q4_k" in gq.formats
    assert "q4_x" not in gq.formats
    assert 4 not in gq.formats


def test_descriptors_are_unique_and_frozen():
    fmt = gq.formats["q4_0"]
    assert pickle.loads(pickle.dumps(fmt)) is fmt
    assert copy.deepcopy(fmt) is fmt
    with pytest.raises(AttributeError):
        fmt.id = 3


@pytest.mark.parametrize("key", ["q4", "q4_k_n", "", "int4", 43, -1, 10**9])
def test_unknown_formats(key):
    with pytest.raises(gq.GGMLQError, match="ggml has no such type") as error:
        gq.formats[key]
    assert isinstance(error.value, KeyError | ValueError)


def test_an_unknown_name_brings_the_nearest_ones():
    with pytest.raises(gq.GGMLQError, match=r"did you mean q4_K"):
        gq.formats["q4_kk"]


def test_a_mix_and_a_code_are_no_types_and_say_where_they_go():
    with pytest.raises(
        gq.GGMLQError, match=r"mix of types for whole models.*`ggmlq quantize` and.*gq\.convert"
    ):
        gq.quantize(np.ones(256, np.float32), "q4_k_m")
    for name, bits in {"e4m3": 8, "INT8": 8, "int16": 16}.items():
        with pytest.raises(
            gq.GGMLQError, match=rf"a code of {bits} bits.*gq\.quantize_scaled\(x, '{name.lower()}'"
        ):
            gq.quantize(np.ones(256, np.float32), name)
    with pytest.raises(gq.GGMLQError, match=r"did you mean q4_K, .*q4_K_M"):
        gq.formats["q4_K_N"]


@pytest.mark.parametrize("id_", REMOVED)
def test_removed_ids_say_what_they_were(id_):
    name, _ = REMOVED[id_]
    for key in (id_, name, name.upper()):
        with pytest.raises(gq.GGMLQError, match=f"ggml removed type {id_} .{name}.*requantize"):
            gq.formats[key]


@pytest.mark.parametrize("key", [None, 2.0, True, ("q4_0",), b"q4_0"])
def test_a_format_is_not_asked_for_by_other_things(key):
    with pytest.raises(gq.GGMLQError, match="by its name"):
        gq.formats[key]


# --- a descriptor checks itself when it is made ---------------------------------------------


def _made(**changes):
    facts = {name: getattr(FORMATS["q4_0"], name) for name in
             ("name", "id", "block_size", "group", "dtype", "unpack", "code", "scale")}  # fmt: skip
    return BlockFormat(**{**facts, **changes})


def test_a_right_descriptor_is_made():
    assert _made().bits_per_weight == 4.5


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"group": 20}, "does not divide"),
        ({"group": 16}, "unpack gave"),
        ({"block_size": 64, "group": 64}, "unpack gave"),
        ({"dtype": np.dtype([("d", "<f2"), ("qs", "u1", (16,))], align=True).newbyteorder("<")}, None),
        ({"dtype": np.dtype({"names": ["d", "qs"], "formats": ["<f2", ("u1", 16)], "offsets": [0, 4]})},
         "qs: at byte 4, expected 2"),
        ({"dtype": np.dtype({"names": ["d", "qs"], "formats": ["<f2", ("u1", 16)], "itemsize": 20})},
         "fields end at 18 of 20"),
        ({"offset": FORMATS["q4_1"].offset}, "disagree"),
        ({"unpack": lambda b: Parts(np.zeros((2, 32), np.int16), np.zeros((2, 1), np.float32), None)},
         "int16"),
    ],
)  # fmt: skip
def test_a_wrong_descriptor_cannot_be_made(changes, complaint):
    if complaint is None:
        _made(**changes)
        return
    with pytest.raises(ValueError, match=complaint):
        _made(**changes)


@pytest.mark.parametrize(
    ("number", "says"),
    [(43, "BPOSIT8"), (144, "ik_llama.cpp.*IQ4_KS"), (97, "Q8_0_X4"), (60, "from 43 on"), (5000, "damaged")],
)
def test_ids_that_forks_use(number, says):
    with pytest.raises(gq.GGMLQError, match=rf"format id {number}: ggml has no such type; .*{says}"):
        gq.formats[number]
