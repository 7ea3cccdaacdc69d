"""How many cores count: affinity, quotas of containers in both forms, and variables with lists."""

from __future__ import annotations

import pytest

from ggmlq.base import threads
from ggmlq.base.system import cpu_model


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Sixteen cores, and files of quotas as given."""
    monkeypatch.setattr(threads, "cores", lambda: 16)
    for name in threads.LIMITS:
        monkeypatch.delenv(name, raising=False)

    def available(own, files):
        (tmp_path / "own").write_text(own)
        for name, text in files.items():
            (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "groups" / name).write_text(text)
        return threads.available(tmp_path / "groups", tmp_path / "own")

    return available


OLD = "4:cpu,cpuacct:/docker/a\n1:name=systemd:/b\n"


@pytest.mark.parametrize(
    ("own", "files", "want"),
    [
        ("0::/\n", {"cpu.max": "200000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 16),
        ("0::/a/b\n", {"a/cpu.max": "150000 100000\n", "a/b/cpu.max": "max 100000\n"}, 2),
        ("0::/a/b\n", {"a/cpu.max": "400000 100000\n", "a/b/cpu.max": "50000 100000\n"}, 1),
        ("0::/not/seen\n", {"cpu.max": "300000 100000\n"}, 3),
        ("0::/\n", {"cpu.max": "nonsense"}, 16),
        ("0::/\n", {"cpu.max": "0 0"}, 16),
        (OLD, {"cpu,cpuacct/cpu.cfs_quota_us": "300000", "cpu,cpuacct/cpu.cfs_period_us": "100000"}, 3),
        (OLD, {"cpu/docker/a/cpu.cfs_quota_us": "250000", "cpu/docker/a/cpu.cfs_period_us": "100000"}, 3),
        (OLD, {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 16),
        ("", {}, 16),
        ("nonsense\n", {}, 16),
    ],
)
def test_quotas(machine, own, files, want):
    assert machine(own, files) == want


@pytest.mark.parametrize(
    ("said", "want"), [("1,1", 1), ("3", 3), (" 4 , 2", 4), ("0", 16), ("", 16), ("many", 16), ("99", 16)]
)
def test_variables(machine, monkeypatch, said, want):
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert machine("", {}) == want


def test_of_this_machine():
    assert 1 <= threads.available() <= threads.cores()
    assert threads.num_threads() <= threads._AVAILABLE
    assert cpu_model() is None or cpu_model() == cpu_model().strip() != ""
