"""Shared or tied tables are a single `nn.Parameter` in several modules of the PyTorch port, and stay so."""

from typing import Any

import pytest
import torch
from torch_models import CONFIG, SOURCE, TARGET, Doubled, model_of, tied

from impl_torch import weights
from impl_torch.projection import initialise
from impl_torch.transformer import Transformer
from reference_numpy import TransformerConfig

ALIASES = ("target_embedding.weight", "logits.weight")


def older(state: dict[str, Any]) -> dict[str, Any]:
    """Returns the state dict under the former names of tables and norms."""
    named = {}
    for name, tensor in state.items():
        owner, _, own = name.rpartition(".")
        renamed = {"weight": "scale", "bias": "offset"} if owner.endswith("norm") else {"weight": "table"}
        named[f"{owner}.{renamed.get(own, own)}" if owner.endswith(("norm", "embedding")) else name] = tensor
    return named


@pytest.mark.parametrize("config", [CONFIG, CONFIG.replace(share_embeddings=False, source_vocabulary=11)], ids=["shared", "tied"])
def test_no_way_of_loading_loses_a_tie(config: TransformerConfig) -> None:
    model, source = model_of(config), SOURCE % 11
    expected, state = model(source, TARGET), model.state_dict()
    table = state["source_embedding.weight" if config.share_embeddings else "target_embedding.weight"]
    older = state | dict.fromkeys(ALIASES, table)
    twice = state | {name: table.clone() for name in ALIASES}
    last = {name: tensor for name, tensor in older.items() if not name.endswith("embedding.weight") or name == "source_embedding.weight"}
    last = last if not config.share_embeddings else {name: tensor for name, tensor in last.items() if name != "source_embedding.weight"}
    for given in (state, older, twice, last):
        for assign in (False, True):
            for device in ("cpu", "meta"):
                with torch.device(device):
                    fresh = Transformer(config).eval()
                if device == "meta" and not assign:
                    fresh.to_empty(device="cpu")
                fresh.load_state_dict(given, assign=assign)
                assert fresh.logits.weight is fresh.target_embedding.weight
                assert torch.equal(fresh(source, TARGET), expected)
    holder = torch.nn.ModuleDict({"inner": model_of(config, 1)})
    holder.load_state_dict({f"inner.{name}": tensor for name, tensor in older.items()})
    assert torch.equal(holder["inner"](source, TARGET), expected)


@pytest.mark.parametrize("name", ALIASES)
def test_two_tensors_for_one_tie_are_refused(name: str) -> None:
    model = model_of()
    state = model.state_dict()
    with pytest.raises(RuntimeError, match=rf"{name}.*source_embedding\.weight"):
        model.load_state_dict(state | {name: state["source_embedding.weight"] + 1})


def test_a_state_dict_with_the_older_names_is_loaded() -> None:
    config = CONFIG.replace(positions="learned", max_positions=9, embedding_norm=True)
    model, fresh = model_of(config), model_of(config, 1)
    given = older(model.state_dict())
    assert {"source_embedding.table", "source_position_embedding.table", "target_embedding_norm.scale"} < set(given)
    fresh.load_state_dict(given)
    assert torch.equal(fresh(SOURCE, TARGET), model(SOURCE, TARGET))


def test_replaced_sides_of_a_tie_are_computed_with_saved_and_not_exported() -> None:
    model = model_of()
    model.logits.weight = torch.nn.Parameter(torch.zeros(19, 32))
    torch.testing.assert_close(model(SOURCE, TARGET), torch.zeros(3, 4, 19) + model.logits.bias)
    assert {name for name in ALIASES if name in model.state_dict()} == {"logits.weight"}
    other = model_of()
    other.logits.weight = torch.nn.Parameter(torch.ones(19, 32))
    other.load_state_dict(model.state_dict())
    assert not other.logits.weight.any()
    with pytest.raises(ValueError, match=r"logits\.weight"):
        weights.export(model, CONFIG)
    model = model_of()
    torch.nn.utils.parametrize.register_parametrization(model.source_embedding, "weight", Doubled())
    with pytest.raises(ValueError, match=r"target_embedding\.weight.*source_embedding\.weight"):
        weights.export(model, CONFIG)


def test_a_projection_starts_with_the_numbers_of_the_reference_after_to_empty_too() -> None:
    with torch.device("meta"):
        model = Transformer(CONFIG)
    torch.manual_seed(0)
    model.to_empty(device="cpu").apply(initialise)
    hidden = model.encoder.layers[0].feed_forward.hidden
    limit = (6 / (32 + 64)) ** 0.5
    for weight, bias in ((hidden.weight, hidden.bias), (model_of().encoder.layers[0].feed_forward.hidden.weight, hidden.bias)):
        assert 0.98 * limit < weight.abs().max() <= limit
        assert not bias.any()
    assert tied(model)
    assert (model.encoder.layers[0].feed_forward_norm.weight == 1).all()
