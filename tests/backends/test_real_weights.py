"""A real `torch.nn.Transformer`, saved, converted and run by all three ports.

`test_checkpoint_torch` shows that the reference gives the module's own logits.
"""

from pathlib import Path

import pytest
from backends import PORTS
from checkpoint_models import FLAGS, FROM_TORCH, torch_model
from invoke import succeeded
from kinds import every


@pytest.mark.product
@pytest.mark.parametrize("port", every(3, PORTS))
def test_check_runs_the_whole_model_on_the_checkpoint(port: str, tmp_path: Path) -> None:
    pytest.importorskip("torch").save(torch_model(norm_first=True).state_dict(), tmp_path / "model.pt")
    choices = ("--preset", "nn_transformer", "--set", "heads=3", "--set", "norm_placement=pre", "--ignore", "pe")
    file = tmp_path / "model.safetensors"
    succeeded("convert", tmp_path / "model.pt", file, *FROM_TORCH, *FLAGS, *choices)
    found = succeeded("check", port, "--checkpoint", file, "--dtype", "float64,float32", "--json", "-").out
    assert found.count('"status": "pass"') == 4  # full and ragged rows
