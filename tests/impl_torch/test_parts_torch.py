"""Changes that users make to models of the PyTorch port: replaced parts, adapters, quantized weights."""

import copy
from typing import Any

import pytest
import torch
from test_use_torch import IDS, MODELS, close, loaded, right, trained
from torch import nn
from torch.nn.utils import parametrizations, prune
from user_models import CONFIG, UNTIED

from impl_torch import weights
from impl_torch.decoding import Searcher
from impl_torch.dropout import Dropout
from impl_torch.embedding import Embedding
from impl_torch.programs.unpadding import unpadded


def test_a_replaced_table_is_used_and_one_that_does_not_scale_is_refused() -> None:
    model = loaded(UNTIED)
    model.source_embedding = Embedding(24, 8, UNTIED.scale_embedding).double()
    right(trained(model))
    model.source_embedding = nn.Embedding(24, 8).double()
    with pytest.raises((TypeError, ValueError), match=r"nn\.Embedding"):
        model(*IDS)
    config = UNTIED.replace(scale_embedding=False)
    model = loaded(config)
    model.source_embedding = nn.Embedding(24, 8).double()
    model.encoder.layers[0].feed_forward_norm = nn.LayerNorm(8, eps=config.epsilon).double()
    right(trained(model))


def test_a_tied_vocabulary_is_resized_and_logits_are_untied() -> None:
    model = loaded()
    rows = torch.zeros(3, 8, dtype=torch.float64)
    table = nn.Parameter(torch.cat([model.logits.weight.detach(), rows]))
    for module in (model.source_embedding, model.target_embedding, model.logits):
        module.weight = table
    model.source_embedding.num_embeddings = model.target_embedding.num_embeddings = 27
    model.logits.bias = nn.Parameter(torch.zeros(27, dtype=torch.float64))
    right(trained(model), config=CONFIG.replace(source_vocabulary=27, target_vocabulary=27))
    model = loaded()
    model.logits.weight = nn.Parameter(torch.randn(24, 8, dtype=torch.float64))
    right(trained(model), config=CONFIG.replace(tie_logits=False))


class AllDropped(Dropout):
    def forward(self, x: torch.Tensor, keep: torch.Tensor | None = None) -> torch.Tensor:
        return torch.zeros_like(x)


def test_a_hook_or_a_forward_of_its_own_of_the_dropout_of_weights_is_given_them() -> None:
    model, given = loaded(), []
    dropout = model.encoder.layers[0].self_attention.weights_dropout
    dropout.register_forward_hook(lambda _, args, output: given.append(args[0]))
    right(model)
    close(given[0], model.states(*IDS)["encoder"]["self_attention_lbhts"][0])
    model.encoder.layers[0].self_attention.weights_dropout = AllDropped(0.0)
    assert not torch.allclose(model(*IDS), loaded()(*IDS))


def test_layers_that_share_parameters_are_saved_and_loaded() -> None:
    config = CONFIG.replace(encoder_layers=2)
    model, other = loaded(config), loaded(config, seed=1)
    for each in (model, other):
        each.encoder.layers[1] = each.encoder.layers[0]
    other.load_state_dict(trained(model).state_dict())
    close(other(*IDS), model(*IDS))
    right(other)


def test_parametrized_and_pruned_weights_are_computed_with() -> None:
    model = loaded()
    parametrizations.weight_norm(model.encoder.layers[0].feed_forward.hidden)
    parametrizations.spectral_norm(model.decoder.layers[0].self_attention.query)
    parametrizations.orthogonal(model.decoder.layers[0].feed_forward.output)
    right(trained(model))
    right(model, unpadded(model, 0))
    MODELS.searched(model)
    model = loaded()
    hidden = model.decoder.layers[0].feed_forward.hidden
    prune.l1_unstructured(hidden, "weight", 0.3)
    found = MODELS.tokens(model)
    prune.remove(hidden, "weight")
    right(model)
    assert found == MODELS.tokens(model)


@pytest.mark.conformance
@pytest.mark.parametrize(
    ("targets", "config", "saved"),
    [(["query", "value"], CONFIG, None), ("all-linear", UNTIED, None),
     (["source_embedding"], UNTIED, None), (["query"], UNTIED, ["logits"])],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def test_lora_of_peft_is_trained_searched_and_merged(targets: Any, config: Any, saved: Any) -> None:
    peft = pytest.importorskip("peft")
    lora = peft.LoraConfig(r=2, target_modules=targets, modules_to_save=saved)
    adapted = peft.get_peft_model(loaded(config), lora)
    inner, own = adapted.base_model.model, [p for p in adapted.parameters() if p.requires_grad]
    trained(inner, torch.optim.SGD(own, 0.1))
    logits, found = inner(*IDS), MODELS.tokens(inner)
    close(unpadded(inner, 0)(*IDS), logits)
    merged = adapted.merge_and_unload()
    right(merged, lambda *_: logits)
    assert found == MODELS.tokens(merged)


@pytest.mark.conformance
@pytest.mark.filterwarnings("ignore")
def test_quantized_models_search_as_they_compute() -> None:
    quantization = pytest.importorskip("torchao.quantization")
    model = loaded(dtype="float32")
    for kind in ("torchao", "dynamic"):
        found = copy.deepcopy(model)
        if kind == "torchao":
            quantization.quantize_(found, quantization.Int8WeightOnlyConfig())
            with pytest.raises(ValueError, match="Int8Tensor"):
                weights.export(found, CONFIG)
        else:
            found = torch.ao.quantization.quantize_dynamic(found, {nn.Linear}, dtype=torch.qint8)
        torch.testing.assert_close(found(*IDS), model(*IDS), rtol=0, atol=0.5)
        first = found(IDS[0], torch.full((4, 1), 1))[:, -1].argmax(-1)
        assert first.tolist() == [row[0] for row in MODELS.tokens(found)]
    with pytest.raises(ValueError, match="int8 needs a CPU"):
        Searcher(model, "int8").to("meta")
