"""The training of the PyTorch port: beside the truth's, resumed, and with random masks."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reference_numpy import TransformerConfig, parameters, preset, sites
from reference_numpy import training as truth
from reference_numpy.recipe import PAPER, Recipe
from reference_numpy.strategy import Strategy

torch = pytest.importorskip("torch")

from torch._dynamo.testing import CompileCounter  # noqa: E402

from impl_torch import loss, optimizer, training  # noqa: E402
from impl_torch.attention import scaled_dot_product_attention  # noqa: E402
from impl_torch.decoding import Searcher  # noqa: E402
from impl_torch.dropout import Dropout  # noqa: E402
from impl_torch.fast.compiled import compiled  # noqa: E402
from impl_torch.training import Trainer  # noqa: E402
from impl_torch.transformer import Transformer  # noqa: E402

RATES = {"dropout_rate": 0.3, "attention_dropout_rate": 0.2, "hidden_dropout_rate": 0.1}
CLOSE = 1e-10  # float64, after some steps of Adam, whose quotient makes a rounding of a small gradient larger
FAST = PAPER.replace(warmup=3)
SEARCHES = ("greedy_search", "beam_search")
MANY = FAST.replace(microbatches=2, clip_norm=0.5, weight_decay=0.1)
Batch = tuple[np.ndarray, np.ndarray]


def config(**changes: Any) -> TransformerConfig:
    fields = {"source_vocabulary": 19, "target_vocabulary": 19, "encoder_layers": 1, "decoder_layers": 1, **RATES, **changes}
    return preset("tiny", **fields)


def values(config: TransformerConfig, dtype: Any = np.float64) -> dict[str, np.ndarray]:
    return parameters.initialise(config, seed=0, dtype=dtype)


def batch(number: int, rows: int = 4, source: int = 7, target: int = 6) -> Batch:
    """Ids with padding at the end of the first row, and a last row that is padding throughout."""
    rng = np.random.default_rng(number)
    tokens = rng.integers(3, 19, (rows, source)), rng.integers(3, 19, (rows, target))
    for token in tokens:
        token[0, 4:] = token[-1] = 0
    return tokens


def keep(config: TransformerConfig, number: int, batch: Batch) -> dict[str, Any]:
    source, target = batch
    return sites.draw(config, len(source), source.shape[1], target.shape[1] - 1, np.random.default_rng(number))


def close(state: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert list(state) == list(other)
    for name, array in state.items():
        np.testing.assert_allclose(array, other[name], rtol=0, atol=CLOSE, err_msg=name)


def equals_the_truth(config: TransformerConfig, recipe: Recipe, **where: Any) -> None:
    """Five steps of both, with the same keep masks."""
    ours, other = Trainer(config, recipe, values(config), **where), truth.Trainer(config, recipe, values(config))
    for number in range(5):
        tokens = batch(number)
        masks = keep(config, number, tokens)
        assert abs(float(ours.train_step(*tokens, masks)) - float(other.train_step(*tokens, masks))) < CLOSE
    close(ours.state(), other.state())
    source, target = batch(9)
    assert ours.loss(source, target) == pytest.approx(other.loss(source, target), abs=CLOSE)
    strategy = Strategy(start_id=1, end_id=2, max_new_tokens=5, beam_size=2)
    for found, expected in ((getattr(trainer, name)(source, strategy) for trainer in (ours, other)) for name in SEARCHES):
        assert list(found) == list(expected)
        for name, array in expected.items():
            np.testing.assert_allclose(found[name], array, rtol=0, atol=CLOSE, err_msg=name)


@pytest.mark.parametrize("recipe", [FAST, MANY], ids=["plain", "microbatches"])
@pytest.mark.parametrize("changes", [{}, dict.fromkeys(RATES, 0.0), {"norm_placement": "pre", "output_bias": True}, {"padding_id": None}])
def test_five_steps_equal_those_of_the_truth(recipe: Recipe, changes: dict[str, Any]) -> None:
    equals_the_truth(config(**changes), recipe, compiled=False)


@pytest.mark.slow
def test_five_compiled_steps_equal_those_of_the_truth() -> None:
    equals_the_truth(config(), MANY)


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_five_steps_on_cuda_equal_those_of_the_truth(compiled: bool) -> None:
    equals_the_truth(config(), MANY, device="cuda", compiled=compiled)


def test_microbatches_equal_one_batch() -> None:
    whole, parts = (Trainer(config(), FAST.replace(microbatches=count), values(config()), compiled=False) for count in (1, 4))
    for number in range(3):
        tokens = batch(number)
        masks = keep(config(), number, tokens)
        assert abs(float(whole.train_step(*tokens, masks)) - float(parts.train_step(*tokens, masks))) < CLOSE
    close(whole.state(), parts.state())


def test_state_round_trip() -> None:
    trainer = Trainer(config(), FAST, values(config(), np.float32), compiled=False)
    trainer.train_step(*batch(0))
    state = trainer.state()
    assert len(state) == 3 * len(values(config()))
    other = Trainer(config(), FAST, values(config(), np.float32), compiled=False)
    other.load_state(state, trainer.steps)
    assert all(np.array_equal(array, state[name]) for name, array in other.state().items())
    state["parameters.source_embedding.table"][:] = 0
    assert trainer.state()["parameters.source_embedding.table"].any()
    assert other.state()["parameters.source_embedding.table"].any()


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    trainer = Trainer(config(), FAST, values(config()), compiled=False)
    trainer.train_step(*batch(0))
    before, state = trainer.state(), trainer.state()
    state = {name: array + 1 for name, array in state.items()}
    table = "source_embedding.table"
    state[f"first_moment.{table}"] = state[f"first_moment.{table}"][1:]
    state[f"second_moment.{table}"] = state[f"second_moment.{table}"].astype(np.float32)
    del state[f"parameters.{table}"]
    state["moment"] = np.zeros(3)
    with pytest.raises(ValueError) as error:
        trainer.load_state(state, 7)
    for words in (
        f"missing parameters.{table}",
        "unexpected moment",
        "must have shape (19, 32); got (18, 32)",
        "must be float64; got float32",
    ):
        assert words in str(error.value)
    assert trainer.steps == 1
    assert all(np.array_equal(array, before[name]) for name, array in trainer.state().items())


RESUME = """
import hashlib, sys
import numpy as np, torch
sys.path.insert(0, "tests")
from test_training_torch import FAST, Trainer, batch, config, values
start, path, device, compiled = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4] == "True"
torch.set_num_threads(4)
trainer = Trainer(config(), FAST.replace(clip_norm=1.0), values(config(), np.float32), 5, device, compiled)
if start:
    trainer.load_state(dict(np.load(path)), start)
for number in range(start, 4):
    if number == 2 and not start:
        np.savez(path, **trainer.state())
    print(float(trainer.train_step(*batch(number, 64, 31, 29))).hex())
print(hashlib.sha256(b"".join(array.tobytes() for array in trainer.state().values())).hexdigest())
"""


@pytest.mark.parametrize(
    ("device", "compiled"),
    [
        ("cpu", False),
        pytest.param("cpu", True, marks=pytest.mark.slow),
        pytest.param("cuda", False, marks=pytest.mark.gpu),
        pytest.param("cuda", True, marks=pytest.mark.gpu),
    ],
)
def test_a_resumed_run_has_the_same_bits(tmp_path: Path, device: str, compiled: bool) -> None:
    """Four steps in one process; the last two in another. Both say their losses and what the state is."""
    said = []
    for start in ("0", "2"):
        command = [sys.executable, "-c", RESUME, start, str(tmp_path / "state.npz"), device, str(compiled)]
        result = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True)
        said.append(result.stdout.split())
    assert len(said[0]) == 5
    assert said[0][2:] == said[1]


def losses(trainer: Trainer, steps: int = 3) -> list[float]:
    return [float(trainer.train_step(*batch(number))) for number in range(steps)]


def test_random_masks_are_a_function_of_seed_and_step() -> None:
    def trainer(seed: int) -> Trainer:
        return Trainer(config(), FAST, values(config()), seed, compiled=False)

    first = losses(trainer(1))
    torch.rand(7)
    before = torch.get_rng_state()
    assert losses(trainer(1)) == first
    assert torch.equal(torch.get_rng_state(), before)
    assert losses(trainer(2)) != first
    again = trainer(1)
    again.load_state(trainer(1).state(), 5)  # the same parameters at another step
    assert float(again.train_step(*batch(0))) != first[0]


def test_every_site_draws_its_own_mask_and_every_microbatch() -> None:
    trainer = Trainer(config(dropout_rate=0.5), FAST.replace(microbatches=2), values(config()), compiled=False)
    seen = []
    for module in trainer._model.modules():
        if isinstance(module, Dropout) and module.rate == 0.5:
            module.register_forward_hook(lambda module, args, output: seen.append((output == 0) & (args[0] != 0)))
    source, _ = batch(0)
    trainer.train_step(source, source)
    assert len(seen) == 2 * len(
        [name for name in sites.shapes(config(), 2, 7, 6) if not name.endswith(("weights_dropout", "hidden_dropout"))]
    )
    masks = [mask[:, :6] for mask in seen]
    assert not any(torch.equal(masks[i], masks[j]) for i in range(len(masks)) for j in range(i))


def independent(kept: Any, rate: float) -> None:
    """Rate, and the correlation of neighbours along every axis, within five standard deviations of what a fair coin gives."""
    centred = kept.double() - (1 - rate)
    variance = rate * (1 - rate)
    assert abs(centred.mean()) < 5 * (variance / kept.numel()) ** 0.5
    for axis, size in enumerate(kept.shape):
        product = centred.narrow(axis, 0, size - 1) * centred.narrow(axis, 1, size - 1)
        assert abs(product.mean()) < 5 * variance / product.numel() ** 0.5, f"axis {axis}"


def test_random_masks_of_activations_are_independent() -> None:
    torch.manual_seed(0)
    dropped = Dropout(0.3)(torch.ones(16, 20, 24, dtype=torch.float64))
    assert set(dropped.unique().tolist()) == {0.0, 1 / 0.7}
    independent(dropped != 0, 0.3)


@pytest.mark.parametrize("return_weights", [False, True])
def test_random_masks_of_attention_weights_are_independent(return_weights: bool) -> None:
    """Queries of zero attend to all keys alike, and values that are the identity show the weights after dropout."""
    torch.manual_seed(0)
    query, value = torch.zeros(8, 20, 4, 3, dtype=torch.float64), torch.eye(16, dtype=torch.float64)
    value_bsge = value[None, :, None].expand(8, 16, 4, 16)
    key = torch.zeros(8, 16, 4, 3, dtype=torch.float64)
    output: Any = scaled_dot_product_attention(query, key, value_bsge, return_weights=return_weights, dropout_rate=0.3, training=True)
    dropped_bhts = (output[0] if return_weights else output).transpose(1, 2)
    torch.testing.assert_close(dropped_bhts.unique(), torch.tensor([0, 1 / 16 / 0.7], dtype=torch.float64))
    independent(dropped_bhts != 0, 0.3)
    if return_weights:
        assert (output[1] == 1 / 16).all()


def test_evaluation_draws_nothing() -> None:
    trainer = Trainer(config(), FAST, values(config()), compiled=False)
    plain = Trainer(config(**dict.fromkeys(RATES, 0.0)), FAST, values(config()), compiled=False)
    source, target = batch(0)
    assert trainer.loss(source, target) == plain.loss(source, target)
    trainer.train_step(source, target)
    trainer.load_state(plain.state(), 0)
    assert trainer.loss(source, target) == trainer.loss(source, target) == plain.loss(source, target)


def test_a_batch_without_labels_changes_nothing() -> None:
    trainer = Trainer(config(), FAST, values(config()), compiled=False)
    before = trainer.state()
    source, target = (np.zeros_like(token) for token in batch(0))
    assert float(trainer.train_step(source, target)) == 0
    assert trainer.loss(source, target) == (0.0, 0)
    assert all(np.array_equal(array, before[name]) for name, array in trainer.state().items())


def test_searches_follow_the_parameters_and_copy_them_once(monkeypatch: pytest.MonkeyPatch) -> None:
    copies, strategy = list[int](), Strategy(start_id=1, end_id=2, max_new_tokens=3)
    monkeypatch.setattr(training, "Searcher", lambda *args, **kwargs: copies.append(trainer.steps) or Searcher(*args, **kwargs))
    trainer = Trainer(config(), FAST, values(config()), compiled=False)
    source, target = batch(0)

    def found() -> np.ndarray:
        trainer.beam_search(source, strategy)
        return trainer.greedy_search(source, strategy)["log_p_bn"]

    first, state = found(), trainer.state()
    assert copies == [0]
    trainer.train_step(source, target)
    assert not np.array_equal(found(), first)
    assert copies == [0, 1]
    trainer.load_state(state, 0)
    np.testing.assert_array_equal(found(), first)
    assert copies == [0, 1, 0]


def test_tokens_are_refused_before_anything_changes() -> None:
    trainer = Trainer(config(), MANY, values(config()), compiled=False)
    before = trainer.state()
    source, target = batch(0)
    for arguments, words in (
        ((source + 16, target), r"token ids must lie in 0 \.\. 18; got 34"),
        ((source, target - 1), r"token ids must lie in 0 \.\. 18; got -1"),
        ((source, target[:, :1]), "target must have length at least 2"),
        ((source, target[:2]), "batch sizes must be equal; got source 4, target 2"),
        ((source[:3], target[:3]), "the batch must divide into 2 microbatches; got 3 rows"),
    ):
        with pytest.raises(ValueError, match=words):
            trainer.train_step(*arguments)
    assert trainer.steps == 0
    assert all(np.array_equal(array, before[name]) for name, array in trainer.state().items())
    with pytest.raises(ValueError, match="must all be float32 or all float64; got float16"):
        Trainer(config(), FAST, values(config(), np.float16))


def test_sixteen_shapes_have_a_graph_each(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_: Callable[..., Any] = torch.compile
    traced = CompileCounter()
    monkeypatch.setattr(torch, "compile", lambda model, fullgraph, dynamic, options: compile_(
        model, fullgraph=fullgraph, dynamic=dynamic, backend=traced))  # fmt: skip
    torch.compiler.reset()
    trainer = Trainer(config(), FAST, values(config()))
    for length in [*range(4, 20), *range(4, 20)]:
        trainer.train_step(*batch(length, 4, length, 5))
    assert traced.frame_count == 16
    assert torch._dynamo.config.recompile_limit < 16
    with pytest.raises(ValueError, match=r"token ids must lie in 0 \.\. 18; got 34"):
        trainer.train_step(*(token + 16 for token in batch(4, 4, 4, 5)))


@pytest.mark.slow
def test_compiled_masks_are_a_function_of_seed_and_step() -> None:
    first, second = (Trainer(config(), FAST, values(config()), seed=3) for _ in range(2))
    assert losses(first) == losses(second)
    second.load_state(Trainer(config(), FAST, values(config())).state(), 1)
    assert float(second.train_step(*batch(0))) != losses(Trainer(config(), FAST, values(config()), seed=3), 1)[0]


@pytest.mark.slow
def test_a_compiled_loss_refuses_tokens() -> None:
    torch.compiler.reset()  # torch counts the graphs of all models of this process together
    run = compiled(Transformer(config()).eval().training_loss)
    source, target = (torch.from_numpy(token) for token in batch(0))
    assert run(source, target, smoothing=0.1) > 0
    with pytest.raises(ValueError, match=r"token ids must lie in 0 \.\. 18; got 19"):
        run(source, torch.where(target == target.max(), 19, target), smoothing=0.1)


def test_one_fused_kernel_updates_and_only_kernels_and_tables_decay() -> None:
    trainer = Trainer(config(), MANY, values(config()), compiled=False)
    decaying, other = trainer._optimizer.param_groups
    assert decaying["fused"]
    assert [group["weight_decay"] for group in (decaying, other)] == [0.1, 0.0]
    names = {id(tensor): name for name, tensor in trainer._tensors.items()}
    assert {names[id(tensor)].rpartition(".")[2] for tensor in decaying["params"]} == {"kernel", "table"}
    assert {names[id(tensor)].rpartition(".")[2] for tensor in other["params"]} == {"bias", "scale", "offset"}


def test_a_norm_within_the_limit_keeps_every_bit() -> None:
    gradients = {"a": {"kernel": torch.tensor([3.0, 0.1])}, "b": {"bias": torch.tensor([4.0])}}
    clipped = optimizer.clip_global_norm(gradients, 5.1)
    assert torch.equal(clipped["a"]["kernel"], gradients["a"]["kernel"])
    halved = optimizer.clip_global_norm({"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}, 2.5)
    assert [halved["a"].item(), halved["b"].item()] == [1.5, 2.0]
    assert not optimizer.clip_global_norm({"a": torch.zeros(3)}, 1.0)["a"].any()


def test_a_loss_that_counts_nothing_is_zero_with_a_zero_gradient() -> None:
    logits = torch.randn(2, 3, 5, dtype=torch.float16).requires_grad_()
    value = loss.cross_entropy(logits, torch.ones(2, 3, dtype=torch.int64), torch.zeros(2, 3, dtype=torch.bool), 0.1)
    value.backward()
    assert value.item() == 0
    assert value.dtype == torch.float16
    assert logits.grad is not None
    assert not logits.grad.any()


def test_deterministic_kernels_are_for_the_step_alone() -> None:
    fill, during = torch.utils.deterministic.fill_uninitialized_memory, {"forward": set(), "backward": set()}
    trainer = Trainer(config(), FAST, values(config()), compiled=False)

    def record(module: Any, given: Any, output: Any) -> None:
        during["forward"].add(torch.are_deterministic_algorithms_enabled())
        output.register_hook(lambda _: during["backward"].add(torch.are_deterministic_algorithms_enabled()))

    hook = torch.nn.modules.module.register_module_forward_hook(record)
    trainer.train_step(*batch(0))
    hook.remove()
    assert during == {"forward": {True}, "backward": {True}}
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory is fill


def test_seed_and_step_are_not_exchanged() -> None:
    drawn = []
    for seed, steps in ((1, 2), (2, 1)):
        with training._seeded(torch.device("cpu"), seed, steps):
            drawn.append(torch.rand(3))
    assert not torch.equal(*drawn)
