"""A real `torch.nn.Transformer`, saved, converted and run by all four: the logits are the module's own."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backends import PORTS, Backend
from invoke import invoke
from kinds import every

from rosettaformer import checkpoints
from rosettaformer.conformance.case import DTYPES, Case, numpy_dtype
from rosettaformer.conformance.compare import compare
from rosettaformer.conformance.reference import tolerance

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True, but")

VOCABULARY, PADDING = 331, 1
CHOICES = ["--preset", "semillero", "--set", "heads=6", "--set", "norm_placement=pre", "--set", f"padding_id={PADDING}"]


class Model(torch.nn.Module):
    """What a user has: embeddings, an `nn.Transformer` and an output layer, with the names of a tutorial."""

    def __init__(self) -> None:
        super().__init__()
        self.src_embed = torch.nn.Embedding(VOCABULARY, 96)
        self.tgt_embed = torch.nn.Embedding(VOCABULARY, 96)
        self.body = torch.nn.Transformer(96, 6, 3, 2, 224, dropout=0.1, batch_first=True, norm_first=True)
        self.generator = torch.nn.Linear(96, VOCABULARY)

    def forward(self, source: Any, target: Any) -> Any:
        def embed(table: Any, token: Any) -> Any:
            angle = torch.arange(token.shape[1])[:, None] / 10000 ** (torch.arange(0, 96, 2, dtype=torch.float64) / 96)
            position = torch.stack([angle.sin(), angle.cos()], -1).flatten(1)
            return table(token) * 96**0.5 + position.to(table.weight.dtype)

        future = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
        hidden = self.body(
            embed(self.src_embed, source), embed(self.tgt_embed, target), tgt_mask=future, src_key_padding_mask=source == PADDING,
            tgt_key_padding_mask=target == PADDING, memory_key_padding_mask=source == PADDING,
        )  # fmt: skip
        return self.generator(hidden)


def _tokens() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    source, target = rng.integers(2, VOCABULARY, (4, 23)), rng.integers(2, VOCABULARY, (4, 17))
    for row in range(1, 4):
        source[row, -3 * row :] = PADDING
        target[row, -2 * row :] = PADDING
    return source, target


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    return Model().eval()


@pytest.fixture(scope="module")
def file(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("real")
    torch.save(model.state_dict(), folder / "model.pt")
    names = ["--source-embedding", "src_embed", "--target-embedding", "tgt_embed", "--logits", "generator"]
    command = ["convert", folder / "model.pt", folder / "model.safetensors", "--from", "torch-transformer", "--to", "canonical"]
    assert invoke(*command, *CHOICES, *names).code == 0
    return folder / "model.safetensors"


def _case(file: Path, dtype: str) -> Case:
    checkpoint = checkpoints.load(file)
    source, target = _tokens()
    return Case("real", "transformer", checkpoint.config, {"source": source, "target": target}, checkpoint.parameters).at(dtype)


def _own_logits(model: Any, dtype: Any) -> np.ndarray:
    source, target = (torch.from_numpy(token) for token in _tokens())
    with torch.inference_mode():
        return model.to(dtype)(source, target).numpy()


@pytest.mark.parametrize("name", every(3, PORTS))
def test_every_port_gives_the_modules_own_logits(name: str, model: Any, file: Path) -> None:
    backend = Backend(name)
    wanted = _own_logits(model, torch.float64)
    np.testing.assert_allclose(backend.adapter.run(_case(file, "float64")), wanted, rtol=0, atol=1e-11 * np.abs(wanted).max())
    case = _case(file, "float32")
    assert compare(tolerance.expect(case)["output"], backend.adapter.run(case)).excess <= 1


def test_the_module_itself_conforms_in_float32(model: Any, file: Path) -> None:
    own = _own_logits(model, torch.float32)
    model.double()
    assert compare(tolerance.expect(_case(file, "float32"))["output"], own.astype(numpy_dtype("float32"))).excess <= 1


@pytest.mark.conformance
@pytest.mark.parametrize(
    ("ports", "dtypes"),
    [(("torch",), ("float32",)), pytest.param(PORTS, DTYPES, marks=pytest.mark.conformance)],
    ids=["one", "all"],
)
def test_check_runs_the_whole_model_on_the_checkpoint(file: Path, ports: tuple[str, ...], dtypes: tuple[str, ...]) -> None:
    chosen = ("--dtype", ",".join(dtypes), "--checkpoint", str(file), "--json", "-")
    command = [sys.executable, "-m", "rosettaformer", "check", *ports, *chosen]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count('"status": "pass"') == 2 * len(ports) * len(dtypes)  # full and ragged rows
