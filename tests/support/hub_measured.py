"""Compares KerasHub's decoders with the reference: every choice of every family, and Hugging Face checkpoints.

    python tests/support/hub_measured.py jax

prints the measurements on that Keras backend.
"""

import contextlib
import dataclasses
import functools
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from hub_choices import BASES, CHOICES, DIFFERENCES, ENTRIES, LENGTH, PADDED, SIZES, Folder

from reference_numpy import preset
from rosettaformer.files.checkpoints import load
from rosettaformer.judge.case import Case
from rosettaformer.judge.compare import compare
from rosettaformer.judge.expectation import components, tolerance
from rosettaformer.judge.ports.port import load_file
from rosettaformer.judge.suite.build import Builder, rng
from rosettaformer.ports import NotCovered

FUSED = "fused_attention_op_available"  # a function of KerasHub
PORT = Path(__file__).resolve().parents[1] / "ports" / "keras_hub_decoders.py"


class Cell(NamedTuple):
    """Outcome of a choice: equal, differs, as float32, fails, or empty if the backbone cannot express it; the error divided by the
    tolerance, and the same after the cause is repaired.
    """

    outcome: str
    excess: float = 0.0
    repaired: float = 0.0


Cells = Mapping[tuple[str, str], Cell]  # keys: family and choice


def stated(family: str, choice: str, backend: str) -> str:
    """Returns the recorded outcome: equal unless listed in the differences."""
    found = (one.outcome for one in DIFFERENCES if one.choice == choice and family in one.families and backend in one.backends)
    return next(found, "equal")


def surprises(backend: str, found: Cells) -> Iterator[str]:
    """Yields the cells whose outcome is not the recorded one."""
    for (family, choice), (outcome, excess, repaired) in found.items():
        wanted = stated(family, choice, backend)
        if (outcome or "equal") != wanted:
            yield f"{family}, {choice}, on {backend}: {outcome or 'cannot be expressed'} ({excess:.3g}) where {wanted} is written down"
        if repaired > 1:
            yield f"{family}, {choice}, on {backend}: {repaired:.3g} without what is said to be the cause"


def of_backend(backend: str) -> Cells:
    """Runs `measured` in its own process, since a process has only one Keras backend."""
    done = subprocess.run([sys.executable, __file__, backend], env=os.environ | {"KERAS_BACKEND": backend}, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return {(family, name): Cell(*rest) for family, name, *rest in json.loads(done.stdout.splitlines()[-1])}


def measured(backend: str, families: Iterable[str] = BASES) -> Cells:
    """Measures every cell of the families that applies to the Keras backend of this process."""
    wanted = [(family, name) for family in families for name, choice in CHOICES.items() if backend in choice.backends]
    return {(family, name): cell(family, name) for family, name in wanted}


def case_of(family: str, name: str) -> Case:
    """Returns the family's config with the choice, random weights, and tokens."""
    choice, (dialect, own) = CHOICES[name], BASES[family]
    config = preset(dialect).replace(**SIZES | own | choice.changes)
    rows, given = (len(PADDED), {"target_mask_bt": PADDED}) if choice.length == LENGTH else (1, {})
    token_bt = rng(f"hub {family}").integers(0, config.target_vocabulary, (rows, choice.length))
    return Builder({}).make("transformer", f"hub {family}", config, source=None, target=token_bt, **given).at(choice.dtype)


@functools.cache
def port() -> ModuleType:
    return load_file(PORT)


def cell(family: str, name: str) -> Cell:
    """Measures a choice on a family."""
    case, choice = case_of(family, name), CHOICES[name]
    try:
        backbone = port().built(port().FAMILIES[family], case)
        found = port().run(backbone, case)
    except NotCovered:
        return Cell("")
    except Exception as error:
        if "shapes" not in str(error):
            raise
        return Cell("fails")
    real_bt = case.inputs.get("target_mask_bt", np.ones(case.inputs["target"].shape, bool))
    here_bt = ~real_bt if choice.padding else real_bt
    excess = _excess(case, found, here_bt)
    if excess <= 1:
        return Cell("equal", excess)
    if choice.dtype == "float64":
        narrow = {output: array.astype("float32") for output, array in found.items()}
        return Cell("as float32" if _excess(case.at("float32"), narrow, here_bt) <= 1 else "differs", excess)
    with _mended(backbone, case.config):
        return Cell("differs", excess, _excess(case, port().run(backbone, case), here_bt))


@contextlib.contextmanager
def _mended(backbone: Any, config: Any) -> Iterator[None]:
    """Repairs every recorded cause in the backbone: all norms use the config's epsilon, all scores their scale,
    Llama's frequencies are divided by the factor, and attention is not fused.
    """
    for layer in backbone._flatten_layers():
        if hasattr(layer, "epsilon"):
            layer.epsilon = config.epsilon
        if hasattr(layer, "query_head_dim_normalize") and config.score_scale:
            layer.query_head_dim_normalize = config.score_scale == config.key_size**-0.5
        if hasattr(layer, "position_scaling_factor"):
            layer._get_inverse_freq = functools.partial(_divided, layer._get_inverse_freq, layer.position_scaling_factor)
    modules = [module for name, module in sys.modules.items() if name.startswith("keras_hub.") and hasattr(module, FUSED)]
    with contextlib.ExitStack() as stack:
        for module in modules:
            stack.enter_context(mock.patch.object(module, FUSED, lambda: False))
        yield


def _divided(frequencies: Any, factor: float, size: int) -> Any:
    return frequencies(size) / factor


def _excess(case: Case, found: Mapping[str, np.ndarray], here_bt: np.ndarray) -> float:
    """Returns the largest error of the outputs at these positions, divided by the tolerance."""
    expected = tolerance.expect(case, lambda case, *_: {name: array[here_bt] for name, array in _reference(case).items()})
    return max(compare(expected[name], found[name][here_bt]).excess for name in expected)


def _reference(case: Case) -> dict[str, np.ndarray]:
    """Returns the last hidden states and the logits."""
    inputs = {name: value for name, value in case.inputs.items() if name != "source"}
    hidden_lbtd = components.answer(dataclasses.replace(case, component="states", inputs=inputs))["decoder.hidden_lbtd"]
    return {"states": hidden_lbtd[-1], "logits": components.answer(case)["output"]}


def folder_cell(folder: Folder) -> Cell:
    """Measures what `from_preset` makes of the folder, in float32 on TensorFlow."""
    from hugging_face_folders import Drawn, saved

    with tempfile.TemporaryDirectory() as place:
        path = saved(Drawn(f"{folder.kind}ForCausalLM", ENTRIES | dict(folder.entries), "float32", {}), Path(place) / "folder")
        if folder.older:
            said = json.loads((path / "config.json").read_text())
            scaling = said.pop("rope_parameters")
            (path / "config.json").write_text(json.dumps(said | {"rope_theta": scaling.pop("rope_theta"), "rope_scaling": scaling}))
        checkpoint = load(path)
        weights = {name: array.astype("float64") for name, array in checkpoint.parameters.items()}
        inputs = {"source": None, "target": rng(f"hub {folder.name}").integers(0, 23, (2, LENGTH))}
        case = Case("folder", "transformer", checkpoint.config, inputs, weights).at("float32")
        with _sentencepiece():
            backbone = port().keras_hub.models.Backbone.from_preset(str(path), dtype="float32")
    excess = compare(tolerance.expect(case)["output"], port().run(backbone, case)["logits"]).excess
    return Cell("equal" if excess <= 1 else "differs", excess)


@contextlib.contextmanager
def _sentencepiece() -> Iterator[None]:
    """A stub of KerasHub's tokenizer imports, which no backbone needs."""
    name = "sentencepiece"
    if importlib.util.find_spec(name):
        yield
        return
    sys.modules[name] = ModuleType(name)
    sys.modules[name].SentencePieceProcessor = None  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del sys.modules[name]


def besides() -> tuple[bool, ...]:
    """Returns whether each finding of `hub_choices.BESIDES` holds."""
    models, families = port().keras_hub.models, port().FAMILIES
    tied = port().options(families["Llama"], case_of("Llama", "tied logits").config)
    small = port().options(families["SmolLM3"], case_of("SmolLM3", "bfloat16").config)
    copied = models.Llama3Backbone.from_config(models.Llama3Backbone(**tied).get_config())
    half = models.SmolLM3Backbone(**small, dtype="bfloat16")
    return not copied.token_embedding.tie_weights, {variable.dtype for variable in half.variables} == {"float32"}


if __name__ == "__main__":
    print(json.dumps([[*key, *value] for key, value in measured(sys.argv[1]).items()]))
