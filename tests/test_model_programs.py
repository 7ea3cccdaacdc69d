"""Steps of a model on the CPU that are programs: the logits of the walk part by part, from any cache."""

import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
from families import Sizes, family_model

import ggmlq as gq
from ggmlq.cpu.attention import drive
from ggmlq.cpu.machine import program, workers
from ggmlq.errors import NonFiniteError
from ggmlq.model.arithmetic.kernels import Kernels
from ggmlq.model.batch import Piece
from ggmlq.model.caches import CACHE

BLOCKS = ("q4_0", "q8_0", "q5_1")
DENSE = (
    "llama3",
    "mistral",
    "phi3",
    "phi3-long",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3",
    "gemma4",
    "glm4",
    "granite",
    "qwen35",
    "lfm2",
)
MIXTURES = (
    "mixtral",
    "qwen3moe",
    "gpt-oss",
    "deepseek2",
    "granitemoe",
    "glm4moe",
    "qwen3next",
    "qwen35moe",
    "lfm2moe",
)
OTHERS = [
    ("deepseek-lite", "f16"),
    ("deepseek2", "q8_0"),
    ("granitehybrid", "f16"),
    ("nemotron_h", "f16"),
    ("gemma4-moe", "f16"),  # whose experts have a scale each
]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """``models(family)``: a model of the family in blocks, opened once."""
    folder, opened = tmp_path_factory.mktemp("programs"), {}

    def model_of(family, types=BLOCKS, **options):
        key = family, types, *options.items()
        if key not in opened:
            path = folder / f"{len(opened)}.gguf"
            opened[key] = gq.model.load(family_model(path, family, types=types), **options)
        return opened[key]

    return model_of


def walked(model):
    """The same model, part by part in NumPy."""
    other = model.like(None)
    other._arithmetic, other._programs = Kernels(), None
    other._weights._a = other._arithmetic
    return other


def steps(model, cache, pieces):
    return [model.run(piece, cache, last=True) for piece in pieces]


def pieces_of(fresh, model, lengths):
    return [fresh.integers(0, model.vocabulary, n) for n in lengths]


def programs_of(model):
    return [step.program for step in model._programs._there.values() if hasattr(step, "program")]


def close(got, want, size=0.1):
    """True where logits differ by what rounding to codes of 8 bits makes of other sums."""
    return all(np.linalg.norm(a - b) < size * np.linalg.norm(b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("family", DENSE + MIXTURES)
def test_a_program_says_what_the_walk_says(family, models, fresh):
    m = models(family)
    pieces = pieces_of(fresh, m, (5, 1, 5, 1, 1, 5, 1))
    got = steps(m, m.cache(64), pieces)
    assert len(programs_of(m)) == 2
    assert close(got, steps(walked(m), m.cache(64), pieces))
    assert all(np.array_equal(a, b) for a, b in zip(got, steps(m, m.cache(64), pieces), strict=True))


@pytest.mark.parametrize("family", ["llama3", "qwen3moe"])
def test_one_program_serves_every_cache(family, models, fresh):
    m = models(family)
    pieces = pieces_of(fresh, m, (1,) * 6)
    want = steps(m, m.cache(300), pieces)
    before = [id(one) for one in programs_of(m)]
    for positions in (40, 700, 1000):
        assert all(
            np.array_equal(a, b) for a, b in zip(steps(m, m.cache(positions), pieces), want, strict=True)
        )
    assert [id(one) for one in programs_of(m)] == before


@pytest.mark.parametrize(("family", "cache"), OTHERS)
def test_what_computes_besides_is_no_program(family, cache, models, fresh):
    m = models(family, cache=cache)
    pieces = pieces_of(fresh, m, (1, 1, 1, 1))
    got = steps(m, m.cache(16), pieces)
    assert not programs_of(m)
    assert close(got, steps(walked(m), m.cache(16), pieces), 0.4)


@pytest.mark.parametrize("kind", ["q4_0", "q4_K", "iq3_s"])
def test_all_experts_are_in_a_program(kind, tmp_path, fresh):
    """It is recorded while others are chosen; the first and the last one are met, and another sequence."""
    types = ("q4_0", "q8_0", "q5_1", "q4_0", "q4_0", kind, kind, kind)
    path = family_model(tmp_path / "m.gguf", "qwen3moe", types=types, sizes=Sizes(1, width=256, hidden=256))
    m = gq.model.load(path)
    used, routed = [], m._arithmetic.routed

    def watched(*given):
        ids, weights = routed(*given)
        used.append(ids)
        return ids, weights

    m._arithmetic.routed = watched
    first, other = m.cache(80), m.cache(40)
    for _ in range(3):
        m.run(np.array([7]), first)
    ids, met = used[-1], set()
    want = walked(m)
    caches = [(first, want.cache(80)), (other, want.cache(40))]
    for _ in range(3):
        want.run(np.array([7]), caches[0][1])
    count = len(used)
    for i, token in enumerate(fresh.integers(0, m.vocabulary, 60).tolist()):
        ours, theirs = caches[i % 3 == 2]
        assert close([m.run(np.array([token]), ours)], [want.run(np.array([token]), theirs)])
        met |= {*ids.flat}
    assert len(used) == count, "the walk part by part"
    assert met >= {0, 5}


def together(model, caches, tokens):
    """Logits behind a token for each sequence that has one."""
    pieces = [Piece(i, np.array([token])) for i, token in enumerate(tokens) if token is not None]
    return model.together(pieces, [cache.parts[0] for cache in caches], True)


@pytest.mark.parametrize(
    ("family", "cache"),
    [
        ("llama3", "f16"),
        ("gemma2", "q8_0"),
        ("gemma4", "q8_0"),
        ("deepseek2", "bf16"),
        ("gpt-oss", "q4_0"),
        ("qwen35", "f16"),
        ("lfm2", "q8_0"),
    ],
)
def test_a_step_of_several_sequences_is_a_program(family, cache, models, fresh):
    m = models(family, cache=cache)
    want, before = walked(m), len(programs_of(m))
    lengths = (3, 20, 1, 40)
    ours, theirs = ([one.cache(64 + 500 * i) for i in range(4)] for one in (m, want))
    for i, tokens in enumerate(pieces_of(fresh, m, lengths)):
        for one, caches in ((m, ours), (want, theirs)):
            one.prompt(tokens, caches[i])
    drawn = fresh.integers(0, m.vocabulary, (10, 4)).tolist()
    for i, row in enumerate(drawn):
        tokens = [None if i % 3 == 2 and j == 1 else token for j, token in enumerate(row)]
        rows = [token for token in tokens if token is not None]
        alone = [
            want.run(np.array([token]), one)[0]
            for token, one in zip(tokens, theirs, strict=True)
            if token is not None
        ]
        got = together(m, ours, tokens)
        assert got.shape == (len(rows), m.vocabulary)
        assert close(got, alone, 0.2)
    assert len(programs_of(m)) == before + 2, "of three and of four"
    assert [len(one) for one in ours] == [len(one) for one in theirs]


def test_sequences_change_places(models, fresh):
    """A program of several sequences serves them in any order, and others; one alone goes on by its own."""
    m = models("qwen3moe")
    caches = [m.cache(50) for _ in range(6)]
    for i, tokens in enumerate(pieces_of(fresh, m, (2, 5, 9, 2, 5, 9))):
        m.prompt(tokens, caches[i])
    token = int(fresh.integers(0, m.vocabulary))
    for _ in range(3):
        first = together(m, caches[:3], [token] * 3)
        for cache in caches[:3]:
            cache.truncate(len(cache) - 1)
    again = together(m, caches[2::-1], [token] * 3)
    assert np.array_equal(again, first[::-1])
    count = len(programs_of(m))
    other = together(m, caches[3:], [token] * 3)
    assert not np.array_equal(other, first)
    for i in range(3):
        caches[i].truncate(len(caches[i]) - 1)
        assert close(m.run(np.array([token]), caches[i]), first[i : i + 1])
    assert len(programs_of(m)) <= count + 1


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32"])
def test_weights_as_floats(kind, models, fresh):
    m = models("llama3", ("q4_0", kind))
    pieces = pieces_of(fresh, m, (6,) + (1,) * 5)
    got = steps(m, m.cache(16), pieces)
    assert programs_of(m)
    assert close(got, steps(walked(m), m.cache(16), pieces))


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "q8_0", "q4_0", "q5_1", "iq4_nl"])
def test_types_of_caches(kind, models, fresh):
    m = models("llama3", cache=kind)
    pieces = pieces_of(fresh, m, (7, 1, 1, 1, 1))
    got = steps(m, m.cache(32), pieces)
    assert programs_of(m)
    assert close(got, steps(walked(m), m.cache(32), pieces))


@pytest.mark.parametrize("family", ["qwen3", "gpt-oss"])
def test_threads_change_no_bit(family, models, fresh):
    m, before = models(family), gq.get_num_threads() if hasattr(gq, "get_num_threads") else None
    pieces = pieces_of(fresh, m, (1,) * 5)
    try:
        results = []
        for threads in (1, 2, 5):
            gq.set_num_threads(threads)
            results.append(steps(m, m.cache(32), pieces))
    finally:
        gq.set_num_threads(before or 1 << 10)
    for other in results[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("kind", ["q8_0", "q4_0", ("f16", "q8_0")])
def test_numbers_that_blocks_cannot_hold(kind, tmp_path, fresh):
    """NaN and infinity are an error that names the layer, part by part and in a program."""
    with gq.open(family_model(tmp_path / "m.gguf", "llama3", types=BLOCKS)) as file:
        tensors, facts = dict(file.items()), dict(file.metadata.items())
        rows = tensors["token_embd.weight"].dequantize()
        rows[5, 3], rows[6, 1] = np.nan, np.inf
        gq.save(tmp_path / "lies.gguf", tensors | {"token_embd.weight": rows}, facts)
    m = gq.model.load(tmp_path / "lies.gguf", cache=kind)
    for token in (5, 6):
        with pytest.raises(NonFiniteError, match="layer 0 has numbers"):
            m.run(np.array([token]), m.cache(20))
    cache = m.cache(20)
    for _ in range(4):
        m.run(np.array([7]), cache)
    assert programs_of(m)
    for token in (5, 6):
        with pytest.raises(NonFiniteError, match="layer 0 has numbers"):
            m.run(np.array([token]), cache)
    assert len(cache) == 4
    assert np.isfinite(m.run(np.array([7]), cache)).all()


def test_a_cache_of_other_types_has_programs_of_its_own(models, fresh):
    m = models("llama3")
    other = m.like(None, ("q4_0", "q4_0"))
    numbers = fresh.integers(0, m.vocabulary, 8)
    cache, foreign, own = m.cache(40), other.cache(40), other.cache(40)
    for token in numbers:
        m.run(np.array([token]), cache)
        assert np.array_equal(m.run(np.array([token]), foreign), other.run(np.array([token]), own))


def test_a_table_of_angles_lives_as_long_as_programs_may_read_it(models):
    m = models("llama3")
    m.run(np.array([1, 2]), m.cache(4))
    a = m._arithmetic
    starts, table = np.zeros(CACHE, np.int64), weakref.ref(next(iter(a._tables.values()))[0])
    a.fill(starts, 0, 1)
    a._grown(next(iter(a._tables)), 1 << 14)
    assert table() is not None


def test_experts_of_a_lean_model(tmp_path, fresh):
    """A matrix's pages go back to the file once kernels have all of its experts."""
    path = family_model(tmp_path / "m.gguf", "qwen3moe", types=BLOCKS)
    m, usual = gq.model.load(path, lean=True), gq.model.load(path)
    pieces = pieces_of(fresh, m, (20, 1, 1, 1, 1))
    for one, two in zip(steps(m, m.cache(40), pieces), steps(usual, usual.cache(40), pieces), strict=True):
        assert np.array_equal(one, two)
    down = m._weights.matrix("blk.0.ffn_down_exps")
    assert down.raw.ctypes.data in m._arithmetic._given_back


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="pages of files are counted on Linux alone")
def test_one_copy_of_each_matrix(tmp_path, fresh):
    """A lean model gives the file's pages back once its kernels have the matrices, and says the same."""
    path = family_model(
        tmp_path / "m.gguf", "llama3", types=BLOCKS, sizes=Sizes(width=512, hidden=1024, head=128)
    )
    code = f"""
import re, sys, numpy as np, ggmlq as gq
m = gq.model.load({str(path)!r}, lean=sys.argv[1] == "lean")
cache = m.cache(8)
for token in range(3, 8):
    logits = m.run(np.array([token]), cache)
smaps = open("/proc/self/smaps").read()
pages = smaps.partition({str(path)!r})[2]
print(re.search(r"Rss: +(\\d+) kB", pages)[1], logits.sum())
"""
    outputs = [
        subprocess.run([sys.executable, "-c", code, how], capture_output=True, text=True, check=True).stdout
        for how in ("", "lean")
    ]
    (usual, says), (lean, says_too) = (line.split() for line in outputs)
    assert says == says_too
    assert int(lean) < 0.3 * int(usual)


def test_memory_between_kernels_of_attention_lives_until_they_ran(models, fresh, monkeypatch):
    """In a cache of many positions stretches are merged from memory, also where nothing is recorded."""
    m, alive, refs = models("llama3"), [], []
    between, share = drive.between, drive.share_kernel

    def made(nbytes):
        memory = between(nbytes)
        refs.append(weakref.ref(memory))
        return memory

    def watched(*call):
        alive.append(refs[-1]() is not None)
        share(*call)

    monkeypatch.setattr(drive, "between", made)
    monkeypatch.setattr(drive, "share_kernel", watched)
    m.prompt(fresh.integers(0, m.vocabulary, 20), m.cache(1000 + 100))
    assert len(alive) == 2 * len(refs) > 0
    assert all(alive)


def test_two_talks_at_once(models):
    m = models("llama3")
    want = [list(m.generate([1 + i, 7], 12)) for i in range(4)]
    got = [None] * 4

    def talk(i):
        got[i] = list(m.generate([1 + i, 7], 12))

    threads = [threading.Thread(target=talk, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == want


def test_tokens_that_the_embedding_does_not_have(models):
    m = models("llama3")
    cache = m.cache(16)
    for _ in range(4):
        m.run(np.array([3]), cache, last=True)
    for token in (-1, m.vocabulary):
        with pytest.raises(gq.errors.GGMLQError):
            m.run(np.array([token]), cache, last=True)
    assert len(cache) == 4


def test_memory_of_something_else_is_found():
    """NumPy's result lies where a later kernel has its own: it is no memory of the program."""
    from ggmlq.cpu.layers import call

    x = np.ones((1, 64), np.float32)

    def walk(between):
        with workers.recorded(1) as tape:
            a = workers.scratch(x.shape, np.float32)
            a[...] = x
            y = call.times(between(a), 2.0)
        return program.program_of(tape, [], y), y

    whole, y = walk(lambda a: call.times(a, 3.0))
    whole(np.zeros(1, np.int64), [0])
    assert (y == 6).all()
    assert walk(lambda a: a * np.float32(3))[0] is None
