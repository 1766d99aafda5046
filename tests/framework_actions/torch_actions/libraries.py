"""Libraries around torch that are given a model, each imported where it is used: processes of `parallel` import this file, too."""

import copy
import pickle
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from impl_torch import weights
from impl_torch.decoding import Searcher
from impl_torch.programs.unpadding import unpadded
from reference_numpy import TransformerConfig

from .common import BERT, CONFIG, SOURCE, TARGET, UNTIED, Tied, answers, classes, expected, model_of, right, same, searched, topic, trained

TOPIC = topic("Libraries")


class Rows(torch.utils.data.Dataset[dict[str, Any]]):
    """Three rows of ids and their labels."""

    def __init__(self, classifies: bool) -> None:
        self.classifies = classifies

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self.classifies:
            return {"source": SOURCE[index], "labels": torch.tensor(index)}
        return {"source": SOURCE[index], "target": TARGET[index, :-1], "labels": TARGET[index, 1:]}


def with_trainer(model: Any, classifies: bool, folder: Path) -> Any:
    import transformers

    quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "logging_strategy": "no", "label_names": ["labels"]}
    arguments = transformers.TrainingArguments(str(folder), max_steps=2, save_steps=2, learning_rate=1e-2, **quiet)
    trainer = transformers.Trainer(
        model, arguments, train_dataset=Rows(classifies), eval_dataset=Rows(classifies),
        compute_loss_func=lambda out, labels, **_: nn.functional.cross_entropy(out.flatten(0, -2), labels.flatten(), ignore_index=0),
    )  # fmt: skip
    trainer.train()
    trainer.evaluate()
    return model.eval()


@TOPIC.works("`transformers.Trainer(model=...)`, which writes `model.config.use_cache` and saves")
def _(single, folder) -> None:
    model = with_trainer(single, False, folder)
    right(model)
    assert model.config == CONFIG


@TOPIC.works("`transformers.Trainer(model=...)` of an encoder-only model")
def _(folder) -> None:
    model = with_trainer(model_of(BERT, torch.float32), True, folder)
    same(model(SOURCE), classes(model), 1e-4)


@TOPIC.works("a library writes `model.config.use_cache`, `num_beams` and others; copies, `pickle` and a search keep the model's own fields")
def _(model) -> None:
    written = {"use_cache": False, "num_beams": 4, "_attn_implementation": "eager", "pad_token_id": 0}
    for name, value in written.items():
        setattr(model.config, name, value)
    for each in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert (each.config, each.config.num_beams) == (CONFIG, 4)
        assert each.config.to_dict() == CONFIG.to_dict() and hash(each.config) == hash(CONFIG)
        assert not hasattr(CONFIG, "use_cache") and not hasattr(type(model)(model.config).config, "use_cache")
        right(each)
        searched(each)


@TOPIC.refused("a library writes `model.config.dropout_rate`, which is the model's", "cannot assign to field 'dropout_rate'")
def _() -> None:
    model_of().config.dropout_rate = 0.5


def adapted_by_peft(model: Any, **options: Any) -> Any:
    import peft

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return peft.get_peft_model(model, peft.LoraConfig(r=2, **options))


def with_lora(model: Any, **options: Any) -> Any:
    """The model with trained adapters, and with what they compute merged into it."""
    adapted = adapted_by_peft(model, **options)
    inner = adapted.base_model.model
    parameters = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    trained(inner, optimizer=torch.optim.SGD(parameters, 0.1))
    return inner, adapted


def lora(targets: Any, config: TransformerConfig) -> None:
    inner, adapted = with_lora(model_of(config), target_modules=targets)
    logits, found = inner(SOURCE, TARGET), answers(inner)
    same(unpadded(inner, 0)(SOURCE, TARGET), logits)
    merged = adapted.merge_and_unload()
    same(logits, expected(merged, config))
    assert found == answers(merged)


for targets, config in ((["query", "value"], CONFIG), ("all-linear", UNTIED), (["source_embedding"], UNTIED)):
    name = f"`peft` LoRA on `{targets}`{', untied' * (config is UNTIED)}: training, a search, `merge_and_unload`"
    TOPIC.works(name, partial(lora, targets, config), sample=config is CONFIG)


@TOPIC.works('`peft` with `modules_to_save=["logits"]`, untied: the copy is trained and kept')
def _() -> None:
    model = model_of(UNTIED)
    before = model.logits.weight.detach().clone()
    inner, adapted = with_lora(model, target_modules=["query"], modules_to_save=["logits"])
    logits = inner(SOURCE, TARGET)
    merged = adapted.merge_and_unload()
    assert not torch.equal(merged.logits.weight, before)
    same(logits, expected(merged, UNTIED))


@TOPIC.refused('`peft`, `modules_to_save=["logits"]` of tied logits, exported', "no array would hold the module's logits.weight")
def _() -> None:
    _, adapted = with_lora(model_of(), target_modules=["query"], modules_to_save=["logits"])
    weights.export(adapted.merge_and_unload(), CONFIG)


@TOPIC.stock("`peft` LoRA on one side of a tie, then `merge_and_unload`", "`peft` adds the product to the table of all sides")
def _() -> None:
    for model, name, ids in ((model_of(), "source_embedding", (SOURCE, TARGET)), (Tied(), "embedding", (SOURCE, TARGET))):
        adapted = adapted_by_peft(model, target_modules=[name], init_lora_weights=False)
        before, merged = model(*ids), adapted.merge_and_unload()
        assert merged.logits.weight is getattr(merged, name).weight
        assert not torch.allclose(merged(*ids), before, atol=0.1)


@TOPIC.works("`accelerate`: `prepare`, `backward`, `save_model`")
def _(model, folder) -> None:
    import accelerate

    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 1e-2))
    accelerator.backward(model.training_loss(SOURCE, TARGET))
    optimizer.step()
    accelerator.save_model(model, folder)
    right(model)


def quantised(model: Any) -> Any:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    quantize_(model, Int8WeightOnlyConfig())
    return model


@TOPIC.works("`torchao.quantization.quantize_(Int8WeightOnlyConfig())`, then a search")
def _(single) -> None:
    wanted, found = single(SOURCE, TARGET), quantised(copy.deepcopy(single))
    same(found(SOURCE, TARGET), wanted, 0.3)
    step_by_step = torch.full((3, 1), 1)
    first = found(SOURCE, step_by_step)[:, -1].argmax(-1)
    assert first.tolist() == [row[0] for row in answers(found)]


TOPIC.refused(
    "`torchao.quantization.quantize_`, then `weights.export`",
    "query.weight is a Int8Tensor",
    lambda: weights.export(quantised(model_of(dtype=torch.float32)), CONFIG),
)


@TOPIC.works("pt2e: `prepare_pt2e(exported, X86InductorQuantizer())`, `convert_pt2e`")
def _() -> None:
    import torchao.quantization.pt2e.quantizer.x86_inductor_quantizer as x86
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    model = model_of(dtype=torch.float32)
    quantizer = x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config())
    prepared = prepare_pt2e(torch.export.export(model, (SOURCE, TARGET)).module(), quantizer)
    prepared(SOURCE, TARGET)
    converted = convert_pt2e(prepared)
    linears = sum(type(module) is nn.Linear for module in model.modules())
    assert sum("dequantize_per_channel" in str(node.target) for node in converted.graph.nodes) == linears
    same(converted(SOURCE, TARGET), model(SOURCE, TARGET), 0.5)


@TOPIC.works("`torch.ao.quantization.quantize_dynamic(model, {nn.Linear})`, then a search")
def _(single) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = torch.ao.quantization.quantize_dynamic(single, {nn.Linear}, dtype=torch.qint8)
    assert not any(type(module) is nn.Linear for module in found.modules())
    same(found(SOURCE, TARGET), single(SOURCE, TARGET), 0.3)
    answers(found)


TOPIC.refused(
    '`Searcher(model, "int8")` moved to another device',
    "int8 needs a CPU",
    lambda: Searcher(model_of(dtype=torch.float32), "int8").to("meta"),
)
