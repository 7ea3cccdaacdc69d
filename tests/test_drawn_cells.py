"""The cells that benchmarks beside a peer draw, and their summary."""

from __future__ import annotations

from scripts import load

drawn = load("bench", "drawn")
COUNT = 400


def test_products_are_anywhere_in_their_spans(fresh):
    seed = int(fresh.integers(1 << 31))
    cells = drawn.products(seed, COUNT, 256)
    assert cells == drawn.products(seed, COUNT, 256)
    assert all(1 <= m <= 4096 and n % 32 == 0 == k % 256 for m, n, k in cells)
    assert all(256 <= side <= 32768 for cell in cells for side in cell[1:])
    assert 0.3 < sum(m < 64 for m, *_ in cells) / COUNT < 0.7  # as many below the geometric mean as above it
    assert all(drawn.is_tile(cell.m) for cell in cells[3::4])
    assert len({n % 128 for _, n, _ in cells}) == 4


def test_cells_of_attention_and_experts_hold_together(fresh):
    seed = int(fresh.integers(1 << 31))
    for i, cell in enumerate(drawn.attention(seed, COUNT)):
        assert 1 <= cell.queries <= cell.positions <= 65536
        assert cell.heads % cell.kv_heads == 0
        assert i % 3 == 1 or cell.queries == (1 if i % 3 == 0 else cell.positions)
    assert all(1 <= cell.used <= cell.experts <= 256 for cell in drawn.experts(seed, COUNT))


def test_a_summary_names_the_worst_cell_and_has_a_line_for_rows_of_tiles():
    few, tile = drawn.Product(3, 256, 512), drawn.Product(64, 256, 512)
    whole, tiles = drawn.summary([("a", few, 4.0), ("a", tile, 0.25)])
    assert str(whole) == "a: ahead in 50% of 2, mean 1.00, least 0.25 (64x256x512)"
    assert str(tiles).startswith("a, rows a power of two: ahead in 0% of 1")
