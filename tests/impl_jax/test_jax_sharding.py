"""JAX on a mesh: loss, every gradient and every parameter match the reference, and masks equal a single device's."""

import socket
from functools import cache

import jax
import pytest
from jax_on_eight import MODELS, begin, in_process, outcomes, trains
from jax_sharding_checks import CHECKS, LATER
from kinds import conformance

from impl_jax.programs.traffic import traffic

pytestmark = pytest.mark.product

NAMES = [conformance(name) if name.startswith(LATER) else name for name in CHECKS]
PROGRAM = """HloModule jit_step, is_scheduled=true

%add (x: f32[], y: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%x, %y)
}

%body.7_spmd (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %reduce = (f32[3,5]{1,0}, /*index=1*/f32[]) all-reduce(%a, %b), channel_id=1, replica_groups=[2,4]<=[8], to_apply=%add
}

ENTRY %main (p: f64[16,2]) -> f64[16,4] {
  %gather = f64[16,4]{1,0} all-gather(%p), channel_id=2, replica_groups=[4,2]<=[2,4]T(1,0), dimensions={1}
  %scatter = bf16[2,5]{1,0} reduce-scatter(%q), channel_id=3, replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}, to_apply=%add
  %loop = (s32[], f32[8]) while(%t), condition=%cond.7, body=%body.7_spmd, backend_config={"known_trip_count":{"n":"3"}}
}
"""


@cache
def found(later: bool) -> dict[str, str]:
    """Returns the outcomes of the checks of a kind, which share a process."""
    return outcomes(name for name in CHECKS if name.startswith(LATER) == later)


@pytest.mark.parametrize("name", NAMES)
def test_on_eight_devices(name: str) -> None:
    assert not (error := found(name.startswith(LATER))[name]), error


@pytest.mark.conformance
def test_two_processes_train_together_and_each_reads_its_own_part_of_a_state() -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        number = free.getsockname()[1]
    both = [in_process(f"import jax_sharding_checks as checks; checks.process({rank}, {number})", 2) for rank in range(2)]
    first, second = (wait() for wait in both)
    assert (first["rank"], second["rank"]) == (0, 1)
    for one in (first, second):
        # Four parts of nearly everything; a process has two devices, whose parts include copies of unsplit tensors.
        assert one["size"] == 2 and one["flags"] == [True, False] and one["read"] < 0.6, one


@pytest.mark.gpu
def test_a_mesh_of_one_on_a_gpu() -> None:
    """The same code on a GPU, whose compiler makes different programs of it."""
    trains("llama", "data=1", device="cuda", recompute=True)
    trains("paper", "data=1", "Explicit", steps=3, device="cuda")


@pytest.mark.gpu
@pytest.mark.multigpu
def test_meshes_of_several_gpus() -> None:
    """NCCL instead of memory, and reduce-scatter instead of a reduction and a slice."""
    count = min(len(jax.devices("cuda")), 4)
    if count < 2:
        pytest.skip("needs several CUDA devices")
    for mesh in (f"data={count}", f"model={count}", f"data={count // 2},model=2"):
        trains("llama", mesh, device="cuda")


def test_a_mesh_that_does_not_fit_is_one_clear_error() -> None:
    with pytest.raises(ValueError, match="the mesh data=2,model=4 needs 8 devices; JAX sees 1"):
        begin(MODELS["llama"], "data=2,model=4")
    with pytest.raises(ValueError, match=r"heads.*mesh's.*h=8, model=3"):
        begin(MODELS["llama"], "model=3")


def test_collectives_are_counted_as_often_as_they_run() -> None:
    class Compiled:
        @staticmethod
        def as_text() -> str:
            return PROGRAM

    reduced = [("all-reduce", 60), ("all-reduce", 4)]
    assert traffic(Compiled) == [("all-gather", 512), ("reduce-scatter", 80), *reduced * 3]
