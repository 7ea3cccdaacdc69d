"""dask's workers and MPI's ranks: the same bytes, also where a worker is killed, and nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec

import pytest
from executors import importance, model, sabotage

import ggmlq as gq
from ggmlq.tasks import pools, rows

pytestmark = pytest.mark.slow

needs_dask = pytest.mark.skipif(
    find_spec("distributed") is None, reason="dask's distributed is not installed: pip install distributed"
)
needs_mpi = pytest.mark.skipif(
    find_spec("mpi4py") is None or shutil.which("mpiexec") is None,
    reason="MPI is not installed: apt install openmpi-bin, pip install mpi4py",
)
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(gq.__file__)))


@pytest.fixture(scope="module")
def cluster():
    """Two worker processes of one thread each."""
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as cluster:
        yield cluster


@needs_dask
@pytest.mark.filterwarnings("ignore")  # of dask's own making: unclosed sockets, old loops
def test_dask_makes_the_same_whoever_dies(tmp_path, fresh, cluster, monkeypatch):
    from distributed import Client

    monkeypatch.setattr(rows, "ELEMENTS", 1 << 14)
    how = {"imatrix": importance(model(tmp_path / "in.gguf", fresh), fresh)}
    alone = gq.convert.quantize(tmp_path / "in.gguf", tmp_path / "alone.gguf", "q4_0", **how)
    (tmp_path / "marks").mkdir()
    for kills in (0, 1):
        with Client(cluster) as client:
            client.run(sabotage, str(tmp_path / "marks"), kills)
            shared = gq.convert.quantize(
                tmp_path / "in.gguf", tmp_path / "shared.gguf", "q4_0", **how, executor=client.get_executor()
            )
        assert len(os.listdir(tmp_path / "marks")) == kills
        assert (tmp_path / "shared.gguf").read_bytes() == (tmp_path / "alone.gguf").read_bytes()
        assert [done.nmse for done in shared.tensors] == [done.nmse for done in alone.tensors]
    assert sorted(os.listdir(tmp_path)) == ["alone.gguf", "in.gguf", "marks", "shared.gguf"]


@needs_dask
@pytest.mark.filterwarnings("ignore")
def test_dask_compares_and_surveys(tmp_path, fresh, cluster):
    tensors = model(tmp_path / "a.gguf", fresh)
    tensors["blk.1.ffn_up.weight"][3, 4] += 1
    gq.save(tmp_path / "b.gguf", tensors)
    pair = tmp_path / "a.gguf", tmp_path / "b.gguf"
    with pools.dask(cluster.scheduler_address) as executor:
        assert repr(gq.diff.compare(*pair, executor=executor)) == repr(gq.diff.compare(*pair))
        shared = gq.survey(pair, types=["q8_0"], executor=executor)
    assert shared.facts() == gq.survey(pair, types=["q8_0"]).facts()


@needs_dask
@pytest.mark.filterwarnings("ignore")
def test_a_scheduler_that_is_not_there(monkeypatch):
    monkeypatch.setattr(pools, "PATIENCE", 0.5)
    with pytest.raises(gq.errors.WorkerError, match="no scheduler answers there"), pools.dask("127.0.0.1:9"):
        pytest.fail("there is none")


def test_what_is_not_installed_names_its_extra(monkeypatch):
    for module in ("distributed", "mpi4py", "mpi4py.futures"):
        monkeypatch.setitem(sys.modules, module, None)
    for made, package in ((pools.dask("127.0.0.1:9"), "distributed"), (pools.mpi(), "mpi4py")):
        with pytest.raises(gq.errors.MissingDependencyError, match=rf"pip install .{package}"), made:
            pytest.fail("it is not installed")


def ranks(*words):
    """Two ranks: one hands out, one works."""
    env = os.environ | {
        "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "PYTHONPATH": ROOT,
        "OMPI_MCA_rmaps_base_oversubscribe": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }  # fmt: skip
    command = ["mpiexec", "-n", "2", sys.executable, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=120, check=False)


@needs_mpi
def test_mpi_makes_the_same(tmp_path, fresh):
    model(tmp_path / "in.gguf", fresh)
    gq.convert.quantize(tmp_path / "in.gguf", tmp_path / "alone.gguf", "q8_0")
    words = ("-m", "ggmlq", "quantize", tmp_path / "in.gguf", tmp_path / "shared.gguf", "--type", "q8_0")
    done = ranks(*words, "--mpi", "--json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["tensors"]) == 9
    assert (tmp_path / "shared.gguf").read_bytes() == (tmp_path / "alone.gguf").read_bytes()
    missing = ranks("-m", "ggmlq", "survey", tmp_path / "none.gguf", "--mpi")
    assert missing.returncode == 2
    assert "there is no such file" in missing.stderr


@needs_mpi
def test_mpi_ends_with_a_rank_that_dies_and_leaves_nothing(tmp_path, fresh):
    """MPI ends all ranks when one dies; what was there before stays, and doing it again is a new start."""
    model(tmp_path / "in.gguf", fresh)
    (tmp_path / "out.gguf").write_bytes(b"before")
    (tmp_path / "marks").mkdir()
    (tmp_path / "run.py").write_text(
        f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r})\n"
        "from mpi4py import MPI\n"
        "from executors import sabotage\n"
        "from ggmlq.cli import main\n"
        f"if MPI.COMM_WORLD.rank: sabotage({str(tmp_path / 'marks')!r}, 1)\n"
        f"words = ['quantize', {str(tmp_path / 'in.gguf')!r}, {str(tmp_path / 'out.gguf')!r}]\n"
        "sys.exit(main([*words, '--force', '--type', 'q8_0', '--mpi']))\n"
    )
    done = ranks(tmp_path / "run.py")
    assert done.returncode != 0
    assert sorted(os.listdir(tmp_path)) == ["in.gguf", "marks", "out.gguf", "run.py"]
    assert (tmp_path / "out.gguf").read_bytes() == b"before"
    assert ranks(tmp_path / "run.py").returncode == 0
    gq.convert.quantize(tmp_path / "in.gguf", tmp_path / "alone.gguf", "q8_0")
    assert (tmp_path / "out.gguf").read_bytes() == (tmp_path / "alone.gguf").read_bytes()


@needs_mpi
def test_a_script_of_mpi4py_leaves_nothing_either(tmp_path, fresh):
    """Signals unwind while workers write, also where no command is at work."""
    model(tmp_path / "in.gguf", fresh)
    (tmp_path / "marks").mkdir()
    (tmp_path / "run.py").write_text(
        f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r})\n"
        "import ggmlq as gq\n"
        "from executors import sabotage\n"
        f"sabotage({str(tmp_path / 'marks')!r}, 1)\n"
        "if __name__ == '__main__':\n"
        "    from mpi4py.futures import MPIPoolExecutor\n"
        "    with MPIPoolExecutor() as executor:\n"
        f"        gq.convert.quantize({str(tmp_path / 'in.gguf')!r}, {str(tmp_path / 'out.gguf')!r},\n"
        "                            'q8_0', executor=executor)\n"
    )
    for status in (True, False):
        done = ranks("-m", "mpi4py.futures", tmp_path / "run.py")
        assert bool(done.returncode) == status, done.stderr
        there = {"in.gguf", "marks", "run.py"} | (set() if status else {"out.gguf"})
        assert set(os.listdir(tmp_path)) == there


@pytest.mark.slow
@needs_mpi
def test_a_single_rank_is_told_how_to_start():
    words = [sys.executable, "-m", "ggmlq", "survey", "x.gguf", "--mpi"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "mpiexec -n" in done.stderr
