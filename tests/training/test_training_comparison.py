"""The same run on several backends: correct ones agree, a planted bug is found at its step, and backend errors are reported."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backends import random_parameters
from invoke import invoke, succeeded
from kinds import conformance
from messages import mentions
from model_folders import FOUR_NEEDS
from training_runs import fields

from reference_numpy import TransformerConfig, mask, parameters, preset, sites
from rosettaformer.files.checkpoints import canonical
from rosettaformer.judge.case import Case
from rosettaformer.judge.expectation import tolerance
from rosettaformer.use.training import comparison, comparison_report, remote
from rosettaformer.use.training.comparison import Experiment, Run
from rosettaformer.use.training.envelope import Envelope, is_unseen

SITES = {"dropout_rate": 0.1, "attention_dropout_rate": 0.1, "hidden_dropout_rate": 0.1}
TINY = preset("tiny", **SITES, encoder_layers=1, decoder_layers=1, attention_bias=True)
SIZES = {"source_vocabulary": 37, "target_vocabulary": 37, "model_width": 12, "heads": 3, "key_value_heads": 3, "key_size": 4,
         "value_size": 4, "feed_forward_width": 20, "max_positions": 16, "padding_id": 0}  # fmt: skip
# grouped heads, of another size than the width divided by the heads
GROUPED = SIZES | {"heads": 4, "key_value_heads": 2, "key_size": 6, "value_size": 6, "max_positions": 0}
LLAMA = preset("llama2_7b", **GROUPED, decoder_layers=2)
ALONE = (
    preset("bert_base", **(SIZES | SITES), encoder_layers=2, masked_language_head=False, classes=3),
    preset("gpt2_small", **(SIZES | SITES), decoder_layers=2),
    LLAMA.replace(**SITES),
)
LIBRARY = str(Path(__file__).parents[1] / "support" / "library_trainer.py")


def experiment(
    dtype: str = "float64", steps: int = 4, microbatches: int = 1, seed: int = 0, config: TransformerConfig = TINY, **fields: object
) -> Experiment:
    config, recipe = config.replace(**fields), comparison.RECIPE.replace(microbatches=microbatches)
    return Experiment(config, recipe, parameters.initialise(config, seed, dtype), steps, seed)


def assert_together(runs: list[Run], steps: int) -> None:
    assert [(run.backend, run.status, run.message) for run in runs] == [(run.backend, "together", "") for run in runs]
    assert all([step.number for step in run.steps] == list(range(1, steps + 1)) for run in runs)


# Each bug is in a file that can serve as a backend: the reference's Trainer with one change.
REFERENCE = "import numpy as np\nfrom reference_numpy import loss, mask, optimizer, parameters, schedule, training, transformer\n"
HONEST = {
    "accurate": """
from reference_numpy import arithmetic
einsum = arithmetic.einsum
def wide(subscripts, *operands):
    return einsum(subscripts, *(x.astype(np.float64) for x in operands)).astype(operands[0].dtype)
arithmetic.einsum = wide
Trainer = training.Trainer
""",
    "frozen_key_biases": """
adam = optimizer.adam
def frozen(p, g, *rest):
    flat = parameters.flatten(g)
    return adam(p, parameters.nest({n: x * 0 if n.endswith("key.bias") else x for n, x in flat.items()}), *rest)
optimizer.adam = frozen
Trainer = training.Trainer
""",
}
# name -> (its code, the step at which it must be found, what must be named)
MISTAKES = {
    "beta_2": ("""
class Trainer(training.Trainer):
    def __init__(self, config, recipe, *rest):
        super().__init__(config, recipe.replace(beta_2=0.999), *rest)
""", 2, ""),
    "missing_tie": ("""
class Trainer(training.Trainer):
    def __init__(self, config, recipe, values, *rest):
        kernel = {"logits.kernel": values["source_embedding.table"].T}
        super().__init__(config.replace(tie_logits=False), recipe, values | kernel, *rest)
    def state(self):
        return {name: value for name, value in super().state().items() if "logits" not in name}
""", 1, "source_embedding.table"),
    "decay_of_norms": ("""
optimizer.decay_mask = lambda tree: parameters.nest({n: not n.endswith("bias") for n in parameters.flatten(tree)})
Trainer = training.Trainer
""", 1, "norm.scale"),
    "no_hidden_dropout": ("""
class Trainer(training.Trainer):
    def train_step(self, source, target, keep):
        flat = parameters.flatten(keep)
        return super().train_step(source, target, parameters.nest({n: x for n, x in flat.items() if "hidden" not in n}))
""", 1, "loss"),
    "key_biases_that_move": ("""
class Trainer(training.Trainer):
    def state(self):
        return {n: x + 1e-6 * n.endswith("encoder.layers.0.self_attention.key.bias") for n, x in super().state().items()}
""", 1, "encoder.layers.0.self_attention.key.bias"),
    "not_a_number": ("""
class Trainer(training.Trainer):
    def train_step(self, *batch):
        return super().train_step(*batch) * (np.nan if self.steps == 3 else 1)
""", 3, "loss"),
}  # fmt: skip
FAILURES = {
    "crash": ("class Trainer(training.Trainer):\n    def train_step(self, *batch):\n        import os; os._exit(7)\n",
              "the backend's process ended with exit code 7"),
    "error": ("class Trainer(training.Trainer):\n    def train_step(self, *batch):\n        raise RuntimeError('no kernel')\n",
              "RuntimeError: no kernel"),
    "lost": ("class Trainer(training.Trainer):\n    def state(self):\n        state = super().state()\n"
             "        del state['parameters.encoder.layers.0.feed_forward.hidden.bias']\n        return state\n",
             "after step 1: missing encoder.layers.0.feed_forward.hidden.bias of shape (64,)"),
    "none": ("", "must define a class Trainer"),
    "broken": ("1 / 0", "ZeroDivisionError: division by zero"),
}  # fmt: skip


def write(folder: Path, name: str, code: str) -> str:
    (folder / f"{name}.py").write_text(REFERENCE + code)
    return str(folder / f"{name}.py")


def run_files(folder: Path, codes: dict[str, str], which: Experiment) -> dict[str, Run]:
    _, runs = comparison.compare(which, [write(folder, name, code) for name, code in codes.items()])
    return dict(zip(codes, runs, strict=True))


@pytest.fixture(scope="module")
def mistaken(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, Run]:
    """Computes the runs that the following tests request."""
    asked = {item.callspec.params["name"] for item in request.session.items if "mistaken" in getattr(item, "fixturenames", ())}
    codes = {name: code for name, (code, *_) in (MISTAKES | FAILURES).items()} | HONEST
    return run_files(tmp_path_factory.mktemp("mistaken"), {name: codes[name] for name in codes if name in asked}, experiment())


@pytest.mark.parametrize("name", MISTAKES)
@pytest.mark.conformance
def test_a_planted_mistake_is_found_at_its_step_and_named(name: str, mistaken: dict[str, Run]) -> None:
    run, (_, step, named) = mistaken[name], MISTAKES[name]
    assert run.status == "leaves"
    assert run.divergence is not None
    assert run.divergence.number == step
    names = [gap.name for gap in run.divergence.leaves]
    assert any(found.endswith(named) for found in names)
    assert mentions(comparison_report.verdict(run), f"{run.backend} … step {step}: {names[0]} is")
    assert len(run.steps) == 4  # the curve continues


@pytest.mark.parametrize("name", FAILURES)
def test_what_fails_is_said_and_the_others_go_on(name: str, mistaken: dict[str, Run]) -> None:
    run, message = mistaken[name], FAILURES[name][1]
    assert run.status == ("crash" if name == "crash" else "error")
    assert message in run.message
    assert run.message in comparison_report.verdict(run)


@pytest.mark.parametrize("name", HONEST)
def test_what_differs_by_rounding_alone_stays_together_in_float64(name: str, mistaken: dict[str, Run]) -> None:
    assert_together([mistaken[name]], 4)


@pytest.mark.conformance
def test_in_float32_rounding_stays_together_and_mistakes_are_found(tmp_path: Path) -> None:
    names = ("beta_2", "missing_tie", "decay_of_norms", "no_hidden_dropout")
    runs = run_files(tmp_path, {name: MISTAKES[name][0] for name in names} | HONEST, experiment("float32"))
    assert_together([runs[name] for name in HONEST], 4)
    found = {name: run.divergence and run.divergence.number for name, run in runs.items() if name in names}
    assert found == {name: MISTAKES[name][1] for name in names}


@pytest.mark.conformance
def test_a_hang_is_a_hang(tmp_path: Path) -> None:
    code = "class Trainer(training.Trainer):\n    def train_step(self, *batch):\n        import time; time.sleep(600)\n"
    _, [run] = comparison.compare(experiment(steps=1), [write(tmp_path, "hanging", code)], limit=8)
    assert (run.status, run.message) == ("hang", "no answer within 8 s")


PARTED = {"norm_placement": "pre", "final_norm": True, "share_embeddings": False, "tie_logits": False}
WHOLE = {"microbatches": 2, "output_bias": True, "final_norm": True}
RUNS = [
    (("torch",), False, WHOLE | {"steps": 3}),
    *(
        pytest.param(("torch",), False, {"config": config, "microbatches": 2, "steps": 3}, marks=pytest.mark.conformance)
        for config in ALONE
    ),
]
LONG_RUNS: list[tuple[tuple[str, ...], bool, dict[str, Any]]] = [
    (("torch",), True, {"dtype": "float32"}),
    (("tf", "jax", "numpy"), True, {"dtype": "float32", **PARTED}),
    *(
        (("torch", "tf", "jax", "numpy"), True, {"config": config, "dtype": dtype, "microbatches": 2})
        for config in ALONE for dtype in ("float64", "float32")
    ),
]  # fmt: skip
LONG = [pytest.param(ports, compiled, {"steps": 20} | choices, marks=pytest.mark.conformance) for ports, compiled, choices in LONG_RUNS]


class Here(remote._Server):
    """Replaces the process of a backend; its framework is loaded in this one."""

    def __init__(self, backend: str, threads: int) -> None:
        super().__init__(backend)
        self.found: Any = ("ready", None)

    def ask(self, method: str, *arguments: Any, limit: float) -> None:
        self.found = getattr(self, method)(*arguments) or ("ready", None)

    def answer(self, limit: float) -> Any:
        return self.found

    def close(self) -> None: ...


@pytest.mark.parametrize(("ports", "compiled", "choices"), [*RUNS, *LONG])
def test_ports_stay_together(ports: tuple[str, ...], compiled: bool, choices: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of the whole model, a classifier and a decoder-only model agree."""
    for port in ports:
        pytest.importorskip(FOUR_NEEDS[port])
    if (which := experiment(**choices)).steps < 20:
        monkeypatch.setattr(comparison, "Remote", Here)
    _, runs = comparison.compare(which, list(ports), compiled)
    assert_together(runs, which.steps)


class OnBothSides(Experiment):
    """Pads rows on the right, and every second row on the left."""

    def batch(self, step: int) -> tuple[np.ndarray | None, np.ndarray, Mapping]:
        source, target, keep = super().batch(step)
        target[1::2] = target[1::2, ::-1]
        return source, target, keep


@pytest.mark.parametrize(
    ("backends", "compiled"), [(("torch", LIBRARY), False), conformance((("tf",), False)), conformance((("jax",), True))], ids=str
)
@pytest.mark.conformance
def test_a_llama_stays_together_with_the_librarys(backends: tuple[str, ...], compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty steps of transformers' model with torch's AdamW, and of the ports; norm scales are far from 1."""
    monkeypatch.setattr(comparison, "Remote", Here)
    which = OnBothSides(LLAMA, comparison.RECIPE.replace(microbatches=2), random_parameters(LLAMA), 20, 0)
    _, runs = comparison.compare(which, backends, compiled)
    assert_together(runs, which.steps)


def test_a_batch_is_a_function_of_seed_and_step_and_has_empty_rows() -> None:
    which = experiment(microbatches=2)
    source, target, keep = which.batch(3)
    again = which.batch(3)
    assert np.array_equal(source, again[0])
    assert np.array_equal(target, again[1])
    assert not np.array_equal(source, which.batch(2)[0])
    assert not np.array_equal(source, Experiment(which.config, which.recipe, which.values, 4, seed=1).batch(3)[0])
    flat = parameters.flatten(keep)
    assert {name: value.shape for name, value in flat.items()} == sites.shapes(which.config, *source.shape, target.shape[1] - 1)
    assert all(0 < value.mean() < 1 for value in flat.values())
    real, wanted = mask.token_mask(source, 0), mask.token_mask(target, 0)
    assert len(source) % 2 == 0
    assert (~real.any(1) & wanted.any(1)).any(), "no token"
    assert (~real.any(1) & ~wanted.any(1)).any(), "all padding"
    assert len(set(real.sum(1))) > 3


def _loss(config: TransformerConfig, values: dict[str, np.ndarray], which: Experiment) -> Case:
    source, target, _ = which.batch(1)
    return Case("moved", "training_loss", config, {"source": source, "target": target}, values)


def test_the_loss_does_not_see_the_biases_of_keys_and_sees_those_of_queries() -> None:
    which = experiment()
    expected = tolerance.expect(_loss(which.config, dict(which.values), which))["output"]
    for part, seen in (("key.bias", False), ("query.bias", True)):
        names = [name for name in which.values if name.endswith(part)]
        assert [is_unseen(name) for name in names] == [not seen] * 3
        moved = {
            name: value + (name in names) * np.linspace(-1, 1, value.size).reshape(value.shape) for name, value in which.values.items()
        }
        loss = tolerance.expect(_loss(which.config, moved, which))["output"].reference
        assert (abs(loss - expected.reference) > expected.bound) == seen


def test_what_is_allowed_is_the_policy_of_the_references_own_runs() -> None:
    which = experiment("float32", steps=2)
    envelope = Envelope(which.config, which.recipe, which.values)
    wide = Envelope(which.config, which.recipe, {name: value.astype(np.float64) for name, value in which.values.items()})
    name = "decoder.layers.0.feed_forward.hidden.kernel"
    for number in range(1, 3):
        allowed, exact = envelope.step(*which.batch(number)), wide.step(*which.batch(number))
        assert allowed.keys() == exact.keys() == {"loss", *which.values}
        assert np.array_equal(allowed[name].reference, exact[name].reference)
        assert exact[name].bound == 1e-9 * np.abs(exact[name].reference).max()
        assert tolerance.ulp(allowed[name].largest, "float32") <= allowed[name].bound < 1e-5
        unseen = "decoder.layers.0.cross_attention.key.bias"
        assert 0 < exact[unseen].bound < 1e-9 < allowed[unseen].bound < 1


def test_the_chart_marks_where_curves_part() -> None:
    lines = [*comparison_report.chart({"reference": [3.0, 2.0, 1.0], "torch": [3.0, 2.0, float("nan")], "tf": [3.0, 3.0, 1.0]}, height=3)]
    assert lines == [
        "       3 |* 2  ",
        "         |  *  ",
        "       1 |    *",
        "          loss by step: 0 reference, 1 torch, 2 tf, * several",
    ]
    assert [*comparison_report.chart({"reference": []})] == []


SMALL = ("--steps", 2, "--set", "encoder_layers=1", "--set", "decoder_layers=1")


def test_the_command_writes_the_curves_and_says_who_leaves(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    mistake = write(tmp_path, "not_a_number", MISTAKES["not_a_number"][0].replace("== 3", "== 2"))
    numbers, picture = tmp_path / "numbers.json", tmp_path / "curves.svg"
    arguments = (*SMALL, *fields("--recipe", microbatches=2, warmup=10), "--json", numbers, "--picture", picture)
    result = invoke("compare-training", "--backend", f"numpy,{mistake}", *arguments)
    assert result.code == 1, result
    assert mentions(result.out, "numpy … 2 steps")
    assert mentions(result.out, f"{mistake} … step 2: loss is nan away")
    report = json.loads(numbers.read_text())
    assert (report["verdict"], report["dtype"]) == ("differs", "float64")
    assert (report["recipe"]["warmup"], report["recipe"]["microbatches"]) == (10, 2)
    assert [report["config"][rate] for rate in SITES] == [0.1, 0.1, 0.1]
    honest, leaving = report["backends"]
    assert [step["value"] for step in honest["steps"]] == report["reference"]["loss"]
    assert (honest["status"], honest["divergence"]) == ("together", None)
    assert leaving["divergence"] == {"step": 2, "names": ["loss"]}
    assert leaving["steps"][1]["value"] is leaving["steps"][1]["loss"]["distance"] is None
    assert picture.read_text().lstrip().startswith("<?xml")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curves.svg", "not_a_number.py", "numbers.json"]


def test_a_checkpoint_is_the_start(tmp_path: Path) -> None:
    which = experiment("float32", seed=3, dropout_rate=0.0)
    file = tmp_path / "start.safetensors"
    canonical.save(file, which.config, which.values)
    arguments = ("--backend", "numpy", "--steps", 1, "--set", "hidden_dropout_rate=0", "--json", "-")
    report = json.loads(succeeded("compare-training", file, *arguments).out)
    assert [report["config"][rate] for rate in SITES] == [0.1, 0.1, 0]
    config = which.config.replace(dropout_rate=0.1, hidden_dropout_rate=0.0)
    wide = {name: value.astype(np.float64) for name, value in which.values.items()}
    first = Experiment(config, comparison.RECIPE, wide, 1, 0).batch(1)
    [loss] = report["reference"]["loss"]
    assert loss == float(Envelope(config, comparison.RECIPE, wide).step(*first)["loss"].reference)


def test_a_missing_framework_is_missing_and_not_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ModuleNotFoundError('not installed', name='torch')")
    monkeypatch.syspath_prepend(tmp_path)
    alone = invoke("compare-training", "--backend", "torch", *SMALL)
    assert alone.code == 3
    assert "torch: missing" in alone.out and "[torch]'" in alone.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--backend", "mxnet"), "backend must be one of torch, tf, jax, numpy, or a Python file that defines Trainer; got 'mxnet'"),
        (("--backend", "nowhere.py"), "got 'nowhere.py'"),
        (("--steps", "0"), "--steps"),
        (("--set", "dropout=0.2"), "unknown config field 'dropout'"),
        (("--recipe", "warm_up=3"), "unknown recipe field 'warm_up' (nearest: warmup)"),
        (("--recipe", "warmup"), "a setting must be FIELD=VALUE; got 'warmup'"),
        (("one_encoder_layer",), "encoder-only … classes=0 … masked_language_head=False"),
        (("--picture", "curves.txt"), ".png … .svg … .pdf … curves.txt"),
        (("--json", "nowhere/x.json"), "the folder nowhere does not exist"),
        (("no_such_file.safetensors",), "no_such_file.safetensors"),
    ],
)
def test_wrong_usage_is_one_message_and_exit_2(arguments: tuple[str, ...], message: str) -> None:
    found = invoke("compare-training", *arguments)
    assert (found.code, found.out) == (2, "")
    assert mentions(found.err, message) and "Traceback" not in found.err
