"""Random encoders and GPT-2s of the transformers library: saved, loaded, and run both there and here."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from backends import answerer

from reference_numpy import TransformerConfig
from rosettaformer.files.checkpoints import Checkpoint
from rosettaformer.files.checkpoints.hugging_face import FAMILIES
from rosettaformer.judge.case import Case

ACTIVATIONS = (
    "gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_python", "gelu_accurate", "gelu_python_tanh", "quick_gelu", "relu",
)  # fmt: skip
# model_type -> prefix of its class names
ENCODERS = {
    "bert": "Bert", "roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert", "distilbert": "DistilBert",
    "nomic_bert": "NomicBert", "modernbert": "ModernBert", "electra": "Electra",
}  # fmt: skip
ROTARY = ("nomic_bert", "modernbert")  # computed by the library in float32 in part
GPT2_CLASSES = ("GPT2LMHeadModel", "GPT2Model")
# suffix of a class name -> the component that computes the class's first output
COMPONENTS = {
    "ForMaskedLM": "masked_language_logits", "ForSequenceClassification": "classify",
    "LMHeadModel": "transformer", "ForCausalLM": "transformer",
}  # fmt: skip
B, T = 4, 7


class Drawn(NamedTuple):
    """A random model: its class, its config's arguments, and the arguments of save_pretrained."""

    kind: str
    settings: dict[str, Any]
    dtype: str = "float64"
    options: dict[str, Any] = {}  # noqa: RUF012 - of save_pretrained, and never changed


def drawn(family: str, seed: int) -> Drawn:
    """Draws odd widths and numbers of heads, every class, activation and dtype, tied or not, one shard or several."""
    rng = np.random.default_rng([seed, len(family)])
    heads, size = int(rng.integers(1, 6)), int(rng.integers(1, 6))
    vocabulary, positions = int(rng.integers(20, 60)), int(rng.integers(T, 20))
    activation, tied, layers = ACTIVATIONS[seed % len(ACTIVATIONS)], bool(seed % 3), 1 + seed % 3
    rates = [float(rate) for rate in rng.uniform(0, 0.5, 3)]
    width = heads * size
    if family in ENCODERS:
        classes = [f"{ENCODERS[family]}{end}" for end in ("ForMaskedLM", "ForSequenceClassification", "Model")]
        supported = [name for name in classes if _supported(family, name)]
        kind = supported[seed % len(supported)]
        settings = {
            "vocab_size": vocabulary, "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
            "intermediate_size": int(rng.integers(1, 30)), "hidden_act": activation, "max_position_embeddings": positions,
            "type_vocab_size": 1 + seed % 4, "layer_norm_eps": float(rng.choice([1e-12, 1e-5, 1e-3])), "tie_word_embeddings": tied,
            "hidden_dropout_prob": rates[0], "attention_probs_dropout_prob": rates[1],
            "classifier_dropout": rates[2] if seed % 2 else None, "num_labels": 1 + seed % 5, "pad_token_id": seed % 2 or None,
        }  # fmt: skip
        if family in ("roberta", "xlm-roberta", "camembert"):
            padding = seed % 4
            settings |= {"hidden_act": "gelu", "pad_token_id": padding, "max_position_embeddings": positions + padding + 1}
        if family == "distilbert":
            settings = {
                "vocab_size": vocabulary, "dim": width, "n_layers": layers, "n_heads": heads, "hidden_dim": int(rng.integers(1, 30)),
                "activation": activation, "max_position_embeddings": positions, "tie_word_embeddings": tied, "dropout": rates[0],
                "attention_dropout": rates[1], "seq_classif_dropout": rates[2], "num_labels": 1 + seed % 5,
                "pad_token_id": seed % 2 or None,
            }  # fmt: skip
        if family in ROTARY:
            settings |= _rotary(family, seed, heads, size, rates)
        if family == "electra":
            settings |= {"embedding_size": width, "hidden_act": ("gelu", "gelu_python")[seed % 2]}
        if family == "modernbert":
            renamed = ("hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob", "layer_norm_eps", "type_vocab_size")
            settings = {name: value for name, value in settings.items() if name not in renamed}
    else:
        kind = GPT2_CLASSES[seed % 4 == 3]
        settings = {
            "vocab_size": vocabulary, "n_embd": width, "n_layer": layers, "n_head": heads, "n_positions": positions,
            "n_inner": int(rng.integers(1, 30)) if seed % 2 else None, "activation_function": activation,
            "layer_norm_epsilon": float(rng.choice([1e-5, 1e-3])), "tie_word_embeddings": tied, "resid_pdrop": rates[0],
            "embd_pdrop": rates[0], "attn_pdrop": rates[1], "bos_token_id": 1, "eos_token_id": 2,
        }  # fmt: skip
    dtype = ("float64", "float32", "bfloat16", "float16")[seed % 4]
    return Drawn(kind, settings, dtype, {"max_shard_size": "2KB"} if seed % 4 == 1 else {})


def _rotary(family: str, seed: int, heads: int, size: int, rates: list[float]) -> dict[str, Any]:
    """Draws what encoders with rotary positions have apart from BERT."""
    base = [50.0, 1000.0, 10000.0][seed % 3]
    theirs = {"hidden_act": ("silu", *ACTIVATIONS)[seed % 10], "hidden_size": 2 * heads * size, "pad_token_id": 0}
    if family == "nomic_bert":
        return theirs | {"head_dim": 2 * size + 2 if seed % 2 else None, "rope_parameters": {"rope_type": "default", "rope_theta": base}}
    activation = theirs["hidden_act"]
    linear = {"rope_type": "linear", "factor": 2.5} if seed % 4 == 3 else {"rope_type": "default"}
    bits = {
        name: bool((seed * 5 + 3) >> bit & 1)
        for bit, name in enumerate(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias", "decoder_bias"))
    }
    rope = {"full_attention": {**linear, "rope_theta": base}, "sliding_attention": {"rope_type": "default", "rope_theta": 2 * base}}
    return theirs | bits | {
        "hidden_activation": activation, "classifier_activation": activation, "norm_eps": [1e-5, 1e-3][seed % 2],
        "local_attention": 1 + seed % 6, "rope_parameters": rope, "num_hidden_layers": 2 + seed % 3, "embedding_dropout": rates[0],
        "attention_dropout": rates[1], "mlp_dropout": rates[2], "classifier_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
        "cls_token_id": 1, "sep_token_id": 2, "global_attn_every_n_layers": 1 + seed % 4,
    }  # fmt: skip


def _supported(family: str, kind: str) -> bool:
    """Whether all heads of a class are supported."""
    heads = {head.name: head for head in FAMILIES[family].heads}
    return all(heads[name].flag is not None for name in FAMILIES[family].classes[kind])


def made(model: Drawn, seed: int = 0) -> Any:
    """Returns the library's model with random, visible parameters: a fresh model would repeat a single token."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    kind, generator = getattr(transformers, model.kind), torch.Generator().manual_seed(seed)
    result = kind(kind.config_class(**model.settings)).double()
    stored = result.state_dict()
    for parameter in (*result.parameters(), *(buffer for name, buffer in result.named_buffers() if name in stored)):
        torch.nn.init.normal_(parameter, std=0.5, generator=generator)
    return result.to(getattr(torch, model.dtype)).eval()


def saved(model: Drawn, folder: Path) -> Path:
    made(model).save_pretrained(folder, **model.options)
    return folder


def loaded(folder: Path, kind: str, dtype: str = "float64") -> Any:
    """Loads the library's model from a folder in that dtype, with attention maps; missing or unexpected weights are an error."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    result, said = getattr(transformers, kind).from_pretrained(
        folder, dtype=getattr(torch, dtype), attn_implementation="eager", experts_implementation="eager", output_loading_info=True
    )
    assert not any(said.values()), said
    result.config.return_dict = True  # output form without which GPT-2 fails in transformers 5.23
    return result.eval()


def sides_of(config: TransformerConfig) -> tuple[str, ...]:
    """Returns the sides on which texts are padded.

    RoBERTa classifies by the first token of the row; if that is padding, its position differs there.
    """
    pooled = config.classes > 0 and config.position_start == "first_token"
    return ("none", "right") if pooled else ("none", "right", "left")


def tokens_of(config: TransformerConfig, side: str) -> dict[str, np.ndarray]:
    """Returns tokens for a model. Encoders that count positions from the first real token find it by the padding id."""
    vocabulary = config.source_vocabulary if config.encoder_layers else config.target_vocabulary
    found, padding = tokens(vocabulary, side, config.segments), config.position_offset - 1
    if config.encoder_layers and config.position_start == "first_token":
        ids = np.where(found["ids"] == padding, (padding + 1) % vocabulary, found["ids"])
        found["ids"] = np.where(found["mask"], ids, padding)
    return found


def tokens(vocabulary: int, side: str, segments: int = 0) -> dict[str, np.ndarray]:
    """Returns random ids in rows of several lengths, padded on the given side: none, left or right."""
    rng = np.random.default_rng(len(side))
    lengths = np.full(B, T) if side == "none" else np.array([T, 5, 3, 1])
    mask = np.arange(T) < lengths[:, None]
    given = {"ids": rng.integers(0, vocabulary, (B, T)), "mask": mask[:, ::-1] if side == "left" else mask}
    return given | ({"segments": rng.integers(0, segments, (B, T))} if segments else {})


def theirs(model: Any, tokens: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the library's results in float64: a head's output, hidden states and attention maps, layers first."""
    import torch

    inputs = {"input_ids": tokens["ids"], "attention_mask": tokens["mask"].astype(np.int64)}
    if "segments" in tokens:
        inputs["token_type_ids"] = tokens["segments"]
    elif model.config.model_type not in ENCODERS:
        inputs["position_ids"] = np.maximum(np.cumsum(tokens["mask"], 1) - 1, 0)
    with torch.inference_mode():
        given = {name: torch.from_numpy(value.copy()) for name, value in inputs.items()}
        found = model(**given, output_hidden_states=True, output_attentions=True)
    result = {"hidden": torch.stack(found.hidden_states), "attention": torch.stack(found.attentions)}
    result |= {"output": found.logits} if "logits" in found else {}
    return {name: tensor.double().numpy() for name, tensor in result.items()}


def library_loss(model: Any, target: np.ndarray, smoothing: float) -> Any:
    """Returns the library's loss over the non-padding labels of a batch, as a tensor."""
    import torch

    mask = target[:, :-1] != 0
    position = np.maximum(np.cumsum(mask, 1) - 1, 0)
    ids, mask, position, label = (torch.from_numpy(array.astype(np.int64)) for array in (target[:, :-1], mask, position, target[:, 1:]))
    logits_btv = model(input_ids=ids, attention_mask=mask, position_ids=position, use_cache=False).logits
    given = logits_btv.flatten(0, 1), label.flatten()
    return torch.nn.functional.cross_entropy(*given, ignore_index=0, label_smoothing=smoothing)


def cases(checkpoint: Checkpoint, kind: str, tokens: dict[str, np.ndarray]) -> Iterator[Case]:
    """Yields the cases of a checkpoint's hidden states on these tokens, and of its head's output, in float64."""
    values = {name: array.astype(np.float64) for name, array in checkpoint.parameters.items()}
    side, letter = ("source", "s") if checkpoint.config.encoder_layers else ("target", "t")
    inputs: dict[str, Any] = {side: tokens["ids"], f"{side}_mask_b{letter}": tokens["mask"]}
    if "segments" in tokens:
        inputs["segment_bs"] = tokens["segments"]
    head = next((component for end, component in COMPONENTS.items() if kind.endswith(end)), None)
    for component in ("states", *filter(None, [head])):
        given = inputs | ({"source": None} if component == "transformer" else {})
        yield Case("folder", component, checkpoint.config, given, values)


def ours(
    checkpoint: Checkpoint, kind: str, tokens: dict[str, np.ndarray], backend: str = "numpy", dtype: str = "float64"
) -> dict[str, np.ndarray]:
    """Returns the results of `theirs` from our implementation of a checkpoint, in that dtype."""
    answer: Callable[[Case], dict[str, Any]] = answerer(backend)
    stack = "encoder" if checkpoint.config.encoder_layers else "decoder"
    found = {name: array for case in cases(checkpoint, kind, tokens) for name, array in answer(case.at(dtype)).items()}
    result = {"hidden": found[f"{stack}.hidden_lbtd"], "attention": found[f"{stack}.self_attention_lbhts"]}
    return result | ({"output": found["output"]} if "output" in found else {})


def real(name: str, array: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Selects the values at real tokens."""
    if name == "output":
        return array[mask] if array.ndim == 3 else array
    return (array.swapaxes(2, 3) if name == "attention" else array)[:, mask]


def assert_close(got: dict[str, np.ndarray], wanted: dict[str, np.ndarray], mask: np.ndarray, bound: float = 1e-10) -> None:
    """Asserts equality except at padding tokens. bound: relative to the largest value."""
    assert got.keys() == wanted.keys()
    for name in wanted:
        left, right = (real(name, found[name], mask) for found in (got, wanted))
        assert left.shape == right.shape
        np.testing.assert_allclose(left, right, rtol=0, atol=bound * np.abs(right).max(), err_msg=name)
