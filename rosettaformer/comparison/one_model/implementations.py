"""The implementations of a model: those of this project, and transformers as a port."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from reference_numpy import inputs

from ...judge.case import Case
from ...judge.ports.port import NotCovered
from ..engine.opening import transformers_model
from ..engine.sides import Side

# name -> port to load
OWN = {"numpy": f"{__package__}.plain", "torch": "torch", "tf": "tf", "jax": "jax"}
LIBRARY = "transformers"
IMPLEMENTATIONS = (*OWN, LIBRARY)
# name -> display name
NAMES = {"numpy": "NumPy", "torch": "PyTorch", "tf": "TensorFlow", "jax": "JAX", LIBRARY: "transformers"}

# No float64: transformers computes RMS norms and rotary angles in float32, whatever the dtype of the weights.
DTYPES = ("float32", "bfloat16", "float16")
# component -> name of the output in transformers, and whether it has one row per token
OUTPUTS = {"transformer": ("logits", True), "masked_language_logits": ("logits", True), "classify": ("logits", False),
           "pool": ("pooler_output", False)}  # fmt: skip
TABLES = {"hidden_states": "hidden_lbtd", "attentions": "self_attention_lbhts"}  # state in transformers -> state of the reference


def port_of(name: str, folder: Path, temporary: Path) -> str:
    """Returns the port of an implementation. For transformers, writes a port file to `temporary`."""
    if name in OWN:
        return OWN[name]
    file = temporary / "port_of_transformers.py"
    file.write_text(f"from {__name__} import port\n\nglobals().update(port({str(folder.resolve())!r}))\n")
    return str(file)


def port(folder: str) -> dict[str, Any]:
    """Returns the definitions of the port file.

    Raises ValueError if loading fails, ImportError without transformers.
    """
    library = Library(folder)
    return {"dtypes": DTYPES, "states": library.states} | dict.fromkeys(OUTPUTS, library.output)


class Library:
    """A model in transformers, loaded again for each dtype.

    settings: arguments of `from_pretrained`.
    """

    def __init__(self, folder: str, **settings: Any) -> None:
        self._folder, self._settings = folder, settings
        self._models = {"float32": self._loaded("float32")}

    def _loaded(self, dtype: str) -> Any:
        side = Side(f"transformers:{self._folder}", "loaded", self._folder, "transformers", {"dtype": dtype, **self._settings})
        return transformers_model(side).eval()

    def output(self, case: Case) -> np.ndarray:
        """Returns the output of the head. Raises NotCovered without that head, and on padding."""
        name, of_tokens = OUTPUTS[case.component]
        found = self._called(case, of_tokens)
        if name not in found:
            raise NotCovered(f"{type(self._models[case.dtype]).__name__} has no {name}")
        return _array(found[name])

    def states(self, case: Case) -> dict[str, np.ndarray]:
        """Returns the states, named as in `reference_numpy.states`."""
        import torch

        stack = "encoder" if case.config.encoder_layers else "decoder"
        found = self._called(case, True, output_hidden_states=True, output_attentions=True)
        return {f"{stack}.{own}": _array(torch.stack(found[name])) for name, own in TABLES.items()}

    def _called(self, case: Case, of_tokens: bool, **options: bool) -> Mapping[str, Any]:
        import torch

        given = arguments(case)
        if of_tokens and not given["attention_mask"].all():
            raise NotCovered("transformers outputs meaningless numbers at padding, which differ")
        if case.dtype not in self._models:
            self._models = {case.dtype: self._loaded(case.dtype)}
        with torch.inference_mode():
            tensors = {name: torch.from_numpy(array) for name, array in given.items()}
            found: Mapping[str, Any] = self._models[case.dtype](**tensors, **options, return_dict=True)
        return found

    def timed(self, case: Case, compiled: bool) -> Callable[[], Any]:
        """Returns the call to time. Raises NotCovered if the model lacks the output."""
        import torch

        if case.component == "states":
            return lambda: self.states(case)
        self.output(case)
        tensors = {name: torch.from_numpy(array) for name, array in arguments(case).items()}
        model = torch.compile(self._models["float32"]) if compiled else self._models["float32"]

        def call() -> Any:
            with torch.inference_mode():
                return model(**tensors)[OUTPUTS[case.component][0]]

        return call


def arguments(case: Case) -> dict[str, np.ndarray]:
    """Returns the inputs of a whole model, named as in transformers."""
    side = "source" if case.config.encoder_layers else "target"
    token = case.inputs[side]
    mask, _ = inputs.masked_positions(case.config, side, token, case.inputs.get(f"{side}_mask_b{side[0]}"))
    found = {"input_ids": token, "attention_mask": mask}
    if side == "target":
        found["position_ids"] = np.maximum(np.cumsum(mask, 1) - 1, 0)
    if case.inputs.get("segment_bs") is not None:
        found["token_type_ids"] = case.inputs["segment_bs"]
    return {name: np.array(array, np.int64) for name, array in found.items()}


def _array(tensor: Any) -> np.ndarray:
    from impl_torch.weights import to_numpy

    return np.asarray(to_numpy(tensor))
