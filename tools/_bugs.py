"""Bugs of ggml's history: the last commit that has each, the commit that mends it, and what to run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bug:
    """A bug in ggml-org/ggml: ``good`` mends it, ``bad`` is the commit before."""

    name: str
    says: str  # the mistake in words
    bad: str
    good: str
    check: str  # options of ggmlq check that show it
    since: str = ""  # the commit that brought it, where that is known
    backend: str = "cpu"
    defines: tuple[str, ...] = ()  # options of CMake that it needs
    live: tuple[str, ...] = ()  # beginnings of cases that are wrong for another reason, in both commits


CLAMPED = "CLAMP(ne=["
GAPS = tuple(
    f"{CLAMPED}{ne}], {look}"
    for ne in ("17,5,3,2", "100,4,1,1", "64,7,2,1", "20,1,5,3")
    for look in ("rows apart", "permuted")
)
# The processor must have AMX; gcc 12 drops stores that AMX needs.
AMX = ("GGML_NATIVE=ON", "CMAKE_C_FLAGS=-fno-dse -fno-tree-dse", "CMAKE_CXX_FLAGS=-fno-dse -fno-tree-dse")
REPACKED = "--buffer CPU_REPACK"
ON_GPU = "--device CUDA0"

BUGS = [
    Bug("clamp-threads", "CLAMP leaves the rows of all threads but the first as they are",
        "ef67b496", "b1ce900b", "--ops CLAMP", live=GAPS),
    Bug("copy-blocks", "CPY of blocks counts bytes as elements, and writes behind the result",
        "de9813f8", "028e983b", "--ops CPY"),
    Bug("experts-repacked", "MUL_MAT_ID of K-quants in the layout that interleaves rows",
        "d4a83438", "16323b2e", "--types q4_K --experts edges --repack"),
    Bug("experts-memory", "MUL_MAT_ID in CPU_REPACK has too little memory where experts outnumber tokens",
        "da09852b", "7c5b8d2b", f"--types q4_0 --experts edges {REPACKED}"),
    Bug("mask-of-heads", "FLASH_ATTN_EXT takes the mask of another sequence for that of a head",
        "e9a958c8", "0623ef33", "--ops FLASH_ATTN_EXT"),
    Bug("scan-groups", "SSM_SCAN gives heads the B and C of other groups",
        "92b6797a", "e4556fe5", "--ops SSM_SCAN", since="d693430f"),
    Bug("odd-timesteps", "TIMESTEP_EMBEDDING leaves a column of odd rows unwritten",
        "a98bc280", "f7835175", "--ops TIMESTEP_EMBEDDING"),
    Bug("scale-bias", "SCALE adds scale·bias to x, in vectors",
        "3bfe5e9e", "ecdd3836", "--ops SCALE", since="3ae98975"),
    Bug("norm-tail", "NORM computes the end of a row, which fills no vector, otherwise",
        "17932113", "dc79fd74", "--ops NORM", since="4a8d0409"),
    Bug("repack-threads", "MUL_MAT in CPU_REPACK loses chunks where there are many threads",
        "da232870", "d7c5e5ac", f"--types q4_0 {REPACKED}", since="bf545378"),
    Bug("repack-batches", "MUL_MAT in CPU_REPACK multiplies the first batch alone",
        "f45db474", "2a8303b8", f"--types q4_0 {REPACKED}", live=("--types q4_0 --shapes 9x64x1024",)),
    Bug("repack-chunks", "MUL_MAT in CPU_REPACK loses chunks of small matrices, where there are many threads",
        "c6b3a42c^", "c6b3a42c", f"--types q4_0 {REPACKED}", since="2a8303b8"),
    Bug("triangle-transposed", "SOLVE_TRI stores its result transposed",
        "090eb5e3", "48516fdb", "--ops SOLVE_TRI", since="f45db474"),
    Bug("rwkv-threads", "RWKV and gated linear attention leave heads out, and hang",
        "74b7bca8", "9695adb0", "--ops RWKV_WKV6,RWKV_WKV7,GATED_LINEAR_ATTN", since="86e158d1",
        live=("RWKV_WKV7(heads 4x16", "RWKV_WKV7(heads 3x32", "RWKV_WKV7(heads 2x96")),
    Bug("norm-gradient", "RMS_NORM_BACK overwrites what it still reads, with its result over a source",
        "29e2eef8^", "29e2eef8", "--ops RMS_NORM_BACK"),
    Bug("concat-blocks", "CONCAT of blocks counts elements as blocks, and writes behind the result",
        "e46e368e", "ba5f60df", "--ops CONCAT", since="c7dfe3d1"),
    Bug("amx-rows", "MUL_MAT in AMX at K = 4096 takes the second tile of weights for the first",
        "e9a08842", "f4b7d66c", "--types q4_0 --buffer AMX --shapes 32x64x4096", defines=AMX),
    Bug("cuda-experts", "MUL_MAT_ID by MMQ reads ids of the first tile of columns",
        "e60fe4e3", "30a0c4c9", f"{ON_GPU} --types q4_0,q4_K --experts edges", since="b5ed2968",
        backend="cuda"),
    Bug("cuda-cont", "CONT of permuted tensors",
        "532ea8a3", "18e936b2", f"{ON_GPU} --ops CONT", backend="cuda"),
    Bug("cuda-cont-race", "CONT: threads overwrite what others still read",
        "145115b4", "b1712969", f"{ON_GPU} --ops CONT", backend="cuda"),
    Bug("cuda-rope", "ROPE of rows that lie apart",
        "5cecdad6", "dfde6352", f"{ON_GPU} --ops ROPE", backend="cuda"),
    Bug("cuda-cache", "FLASH_ATTN_EXT: a cache of blocks for several sequences",
        "56c9cd2b", "bf82b878", f"{ON_GPU} --ops FLASH_ATTN_EXT", backend="cuda"),
    Bug("cuda-mla", "FLASH_ATTN_EXT: values that are a part of the keys",
        "9be59daa", "14033645", f"{ON_GPU} --ops FLASH_ATTN_EXT", backend="cuda"),
    Bug("cuda-heads", "FLASH_ATTN_EXT: numbers of heads that are no powers of two",
        "a82d61d2", "43e6c668", f"{ON_GPU} --ops FLASH_ATTN_EXT", backend="cuda"),
    Bug("cuda-scan-race", "SSM_SCAN: a race of threads",
        "812c5772", "5f0b0e89", f"{ON_GPU} --ops SSM_SCAN", backend="cuda"),
]  # fmt: skip
