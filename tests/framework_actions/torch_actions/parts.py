"""What users put in the place of a part, freeze, share or look at."""

from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from impl_torch import weights
from impl_torch.embedding import Embedding
from impl_torch.programs.unpadding import unpadded

from .common import CONFIG, SOURCE, TARGET, UNTIED, answers, expected, model_of, right, same, searched, topic, trained

TOPIC = topic("Parts of a model")


@TOPIC.works("`model.source_embedding = Embedding(...)`, untied, then training", sample=True)
def _() -> None:
    model = model_of(UNTIED)
    model.source_embedding = Embedding(20, 32, UNTIED.scale_embedding).double()
    right(trained(model), UNTIED)


@TOPIC.works("resizing a tied vocabulary: a new table, given to all modules that share it")
def _(model) -> None:
    larger = CONFIG.replace(source_vocabulary=23, target_vocabulary=23)
    table = nn.Parameter(torch.cat([model.logits.weight.detach(), torch.zeros(3, 32, dtype=torch.float64)]))
    for module in (model.source_embedding, model.target_embedding, model.logits):
        module.weight = table
    model.source_embedding.num_embeddings = model.target_embedding.num_embeddings = 23
    model.logits.bias = nn.Parameter(torch.zeros(23, dtype=torch.float64))
    right(trained(model), larger)


@TOPIC.refused("a tied table that is replaced on one side, exported", "no array would hold the module's", sample=True)
def _(model) -> None:
    model.source_embedding = Embedding(20, 32, CONFIG.scale_embedding).double()
    weights.export(trained(model), CONFIG)


@TOPIC.refused("a stock `nn.Embedding` for one that scales by sqrt(d)", "got an nn.Embedding", sample=True)
def _() -> None:
    model = model_of(UNTIED)
    model.source_embedding = nn.Embedding(20, 32).double()
    model(SOURCE, TARGET)


@TOPIC.works("a stock `nn.Embedding` and a stock `nn.LayerNorm` where nothing is scaled")
def _() -> None:
    config = UNTIED.replace(scale_embedding=False)
    model = model_of(config)
    model.source_embedding = nn.Embedding(20, 32).double()
    model.encoder.layers[0].feed_forward_norm = nn.LayerNorm(32, eps=config.epsilon).double()
    right(trained(model), config)


@TOPIC.works("`model.target_embedding.requires_grad_(False)` freezes the tied table", sample=True)
def _(model) -> None:
    before = model.source_embedding.weight.detach().clone()
    model.target_embedding.requires_grad_(False)
    trained(model)
    assert torch.equal(model.logits.weight, before)
    right(model)


@TOPIC.works("`AdamW(model.logits.parameters())` trains the tied table")
def _(model) -> None:
    before = model.source_embedding.weight.detach().clone()
    trained(model, optimizer=torch.optim.AdamW(model.logits.parameters(), 1e-2))
    assert not torch.equal(model.target_embedding.weight, before)
    right(model)


@TOPIC.works("`model.logits.weight = nn.Parameter(...)` unties the logits; an untied config exports it")
def _() -> None:
    config = CONFIG.replace(tie_logits=False)
    model = model_of()
    model.logits.weight = nn.Parameter(torch.randn(20, 32, dtype=torch.float64))
    right(trained(model), config)


@TOPIC.works("no decay for `bias` and `norm.weight` by name, or by `isinstance(module, nn.LayerNorm | nn.Embedding)`", sample=True)
def _(model) -> None:
    spared = [p for module in model.modules() if isinstance(module, nn.LayerNorm | nn.Embedding) for p in module.parameters(recurse=False)]
    names = {name for name, p in model.named_parameters() if p.ndim == 1 or name.endswith("embedding.weight")}
    by_name = {name for name in names if any(part in name for part in ("bias", "norm.weight"))}
    assert by_name == {name for name in names if model.get_parameter(name).ndim == 1}
    bias = [p for name, p in model.named_parameters() if name.endswith("bias")]
    assert {id(p) for p in (*spared, *bias)} == {id(model.get_parameter(name)) for name in names}


@TOPIC.works("`model.apply(init)` by `isinstance(module, nn.Embedding | nn.LayerNorm | nn.Linear)`")
def _() -> None:
    def init(module: nn.Module) -> None:
        if isinstance(module, nn.Embedding | nn.LayerNorm | nn.Linear):
            nn.init.constant_(module.weight, 0.25)

    model = model_of().apply(init)
    assert all((p == 0.25).all() for name, p in model.named_parameters() if name.endswith("weight"))
    right(model)


@TOPIC.works("`repr(model)` shows sizes")
def _() -> None:
    text = repr(model_of())
    assert "(target_embedding): Embedding(20, 32" in text
    assert "(logits): Logits(in_features=32, out_features=20, bias=True)" in text


@TOPIC.works("a forward hook on `attention.weights_dropout` is given the weights", sample=True)
def _(model) -> None:
    given = []
    attention = model.encoder.layers[1].self_attention
    attention.weights_dropout.register_forward_hook(lambda _, args, output: given.append(args[0]))
    right(model)
    same(given[0], model.states(SOURCE, TARGET)["encoder"]["self_attention_lbhts"][1])


@TOPIC.works("layers that share their parameters: `layers[1] = layers[0]`")
def _(model, other) -> None:
    for each in (model, other):
        each.encoder.layers[1] = each.encoder.layers[0]
    other.load_state_dict(trained(model).state_dict())
    same(other(SOURCE, TARGET), expected(model))


@TOPIC.works("`parametrizations.weight_norm`, `spectral_norm`, `orthogonal` on projections, then training and a search")
def _(model) -> None:
    parametrizations.weight_norm(model.encoder.layers[0].feed_forward.hidden)
    parametrizations.spectral_norm(model.decoder.layers[0].self_attention.query)
    parametrizations.orthogonal(model.decoder.layers[1].feed_forward.output)
    right(trained(model))
    same(unpadded(model, 0)(SOURCE, TARGET), expected(model))
    searched(model)


@TOPIC.works("`prune.l1_unstructured`, then a search", sample=True)
def _(model) -> None:
    hidden = model.decoder.layers[0].feed_forward.hidden
    prune.l1_unstructured(hidden, "weight", 0.3)
    found = answers(model)
    prune.remove(hidden, "weight")
    right(model)
    assert found == answers(model)


class Adapter(nn.Module):
    """A low-rank adapter that has neither `weight` nor `in_features`."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.down = base, nn.Linear(base.in_features, 2, bias=False, dtype=torch.float64)
        self.up = nn.Linear(2, base.out_features, bias=False, dtype=torch.float64)

    def forward(self, x: Any) -> Any:
        return self.base(x) + self.up(self.down(x))

    def merged(self) -> nn.Linear:
        with torch.no_grad():
            self.base.weight += self.up.weight @ self.down.weight
        return self.base


@TOPIC.works("adapters in the place of every projection, in attention, feed-forward and a search", sample=True)
def _() -> None:
    model = model_of(UNTIED)
    holders = [(layer.self_attention, name) for layer in model.decoder.layers for name in ("query", "key", "value", "output")]
    holders += [(layer.feed_forward, "hidden") for layer in model.encoder.layers] + [(model, "logits")]
    for holder, name in holders:
        setattr(holder, name, Adapter(getattr(holder, name)))
    found, logits = answers(trained(model)), model(SOURCE, TARGET)
    same(unpadded(model, 0)(SOURCE, TARGET), logits)
    for holder, name in holders:
        setattr(holder, name, getattr(holder, name).merged())
    same(logits, expected(model, UNTIED))
    assert found == answers(model)
