"""The PyTorch port on meshes of CUDA devices: the checks of `on_processes`, with nccl."""

import pytest

torch = pytest.importorskip("torch")

from test_torch_sharding import ALL, in_groups, wrong  # noqa: E402

from reference_numpy.sharding import Mesh  # noqa: E402

MESHES = ("data=2", "model=2", "data=2,replicate", "data=2,model=2", "data=4", "model=4")


@pytest.mark.gpu
@pytest.mark.parametrize(("mesh", "check"), in_groups({"data=1": ALL}))
def test_a_mesh_of_one_gpu(mesh: str, check: str) -> None:
    """The process group is nccl's, parameters are made on the device, and CUDA's kernels take what FSDP2 gives them."""
    assert not wrong(mesh, ALL, "cuda")[check]


@pytest.mark.multigpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices")
@pytest.mark.parametrize(("mesh", "check"), in_groups(dict.fromkeys(MESHES, ALL)))
def test_several_gpus(mesh: str, check: str) -> None:
    """Collectives of nccl between devices."""
    if (found := torch.cuda.device_count()) < (needed := Mesh.parse(mesh).devices):
        pytest.skip(f"the mesh {mesh} needs {needed} CUDA devices; there are {found}")
    assert not wrong(mesh, ALL, "cuda")[check]
