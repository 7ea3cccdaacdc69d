"""Steps of a model on the CPU that are programs: the logits of the walk part by part, from any cache."""

import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.cpu.machine import program, workers
from ggmlq.errors import NonFiniteError
from ggmlq.model.arithmetic.kernels import Kernels
from ggmlq.model.caches import CACHE
from ggmlq.testing.models import Sizes, family_model

BLOCKS = ("q4_0", "q8_0", "q5_1")
DENSE = ("llama3", "mistral", "phi3", "phi3-long", "qwen2", "qwen3", "gemma2", "gemma3")
OTHERS = ("mixtral", "qwen3moe", "gpt-oss", "deepseek-lite")


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


@pytest.mark.parametrize("family", DENSE)
def test_a_program_says_what_the_walk_says(family, models, fresh):
    m = models(family)
    pieces = pieces_of(fresh, m, (5, 1, 5, 1, 1, 5, 1))
    got = steps(m, m.cache(64), pieces)
    assert len(programs_of(m)) == 2
    assert close(got, steps(walked(m), m.cache(64), pieces))
    assert all(np.array_equal(a, b) for a, b in zip(got, steps(m, m.cache(64), pieces), strict=True))


def test_one_program_serves_every_cache(models, fresh):
    m = models("llama3")
    pieces = pieces_of(fresh, m, (1,) * 6)
    want = steps(m, m.cache(300), pieces)
    before = [id(one) for one in programs_of(m)]
    for positions in (40, 700, 1000):
        assert all(
            np.array_equal(a, b) for a, b in zip(steps(m, m.cache(positions), pieces), want, strict=True)
        )
    assert [id(one) for one in programs_of(m)] == before


@pytest.mark.parametrize("family", OTHERS)
def test_what_computes_besides_is_no_program(family, models, fresh):
    m = models(family)
    pieces = pieces_of(fresh, m, (1, 1, 1, 1))
    got = steps(m, m.cache(16), pieces)
    assert not programs_of(m)
    assert close(got, steps(walked(m), m.cache(16), pieces), 0.4)


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


def test_threads_change_no_bit(models, fresh):
    m, before = models("qwen3"), gq.get_num_threads() if hasattr(gq, "get_num_threads") else None
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
    whole(np.zeros(1, np.int64), 0)
    assert (y == 6).all()
    assert walk(lambda a: a * np.float32(3))[0] is None
