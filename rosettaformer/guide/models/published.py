"""The models that have a page: presets, tensor tables, and the case whose forward pass is shown."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from reference_numpy import TransformerConfig, preset
from reference_numpy.rotary_scaling import RotaryScaling

from ...files.checkpoints import torch_layout
from ...files.checkpoints.hugging_face import FAMILIES
from ...files.checkpoints.tables import Table


@dataclass(frozen=True)
class Choice:
    """A config field with the model's value, and the paper's value if it differs."""

    field: str
    value: str
    paper: str


@dataclass(frozen=True)
class Model:
    """A published model.

    preset: its config. table: the tensors of its checkpoints. case: a case with the model's choices
    at a small size. classes: the classes that write these checkpoints. notes: further facts for
    porting. prefix: prefix of tensor names in files of a class with a head. family: the
    `model_type` in config.json; empty if it has none. tutorials: framework -> the page that ports
    it from an empty file.
    """

    name: str
    title: str
    summary: str
    preset: str
    table: Table
    case: str
    classes: tuple[str, ...]
    notes: tuple[str, ...]
    prefix: str = ""
    family: str = ""
    tutorials: Mapping[str, str] = field(default_factory=dict)

    @property
    def config(self) -> TransformerConfig:
        """The config with the published sizes and choices."""
        return preset(self.preset)

    def choices(self) -> dict[str, list[Choice]]:
        """Returns all config fields by group."""
        own, paper = vars(self.config), vars(preset("paper_base"))
        return {
            group: [Choice(field, _shown(own[field]), "" if own[field] == paper[field] else _shown(paper[field])) for field in fields]
            for group, fields in TransformerConfig.groups().items()
        }


def _shown(value: Any) -> str:
    """Returns a field's value as text: a scaling as its parameters, a sequence as its items."""
    if isinstance(value, RotaryScaling):
        return ", ".join(f"{name} {part}" for name, part in value.to_dict().items())
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


MODELS = (
    Model(
        name="transformer",
        title="The original Transformer",
        summary="Vaswani et al. 2017: encoder and decoder, post-norm, sinusoidal positions, tied embeddings",
        preset="paper_base",
        table=torch_layout.TABLE,
        case="transformer/paper_base",
        classes=("torch.nn.Transformer", "nn.TransformerEncoderLayer", "nn.TransformerDecoderLayer"),
        notes=(
            "`torch.nn.Transformer` is this model without embeddings, positions and logits.",
            "Query, key and value are one tensor, `in_proj_weight`. PyTorch's linear layers store `out in`, so every kernel is transposed.",
            "Embeddings and logits are outside the module, under names you choose. Pass them to `rosettaformer convert` as "
            "`--name PART=NAME`.",
        ),
    ),
    Model(
        name="bert",
        title="BERT",
        summary="Devlin et al. 2019: encoder-only, learned positions and segments, GELU, a masked-language head",
        preset="bert_base",
        table=FAMILIES["bert"].table,
        case="masked_language_logits/bert",
        classes=("BertModel", "BertForMaskedLM", "BertForSequenceClassification", "BertForPreTraining"),
        notes=(
            "Its linear layers store `out in`, so every kernel is transposed. Heads are consecutive blocks of the output axis.",
            "Its GELU uses the error function, and its epsilon is 1e-12. The frameworks' default epsilons are larger.",
            "KerasHub's `BertBackbone` uses the tanh form of GELU, and the head of its `BertMaskedLM` has an epsilon of 1e-5. "
            "Read both from `layer.get_config()`.",
            "Position 0 is the first token of a row, even if it is padding.",
            "The decoder of the masked-language head is tied to the token embedding; its bias, `cls.predictions.bias`, is not.",
        ),
        prefix=FAMILIES["bert"].prefix,
        family="bert",
        tutorials={"PyTorch": "port-bert"},
    ),
    Model(
        name="gpt2",
        title="GPT-2",
        summary="Radford et al. 2019: decoder-only, pre-norm with a final norm, learned positions, the tanh form of GELU",
        preset="gpt2_small",
        table=FAMILIES["gpt2"].table,
        case="transformer/gpt2",
        classes=("GPT2Model", "GPT2LMHeadModel"),
        notes=(
            "Its layers are `Conv1D`, which stores `in out`, so no kernel is transposed.",
            "Query, key and value are thirds of one tensor, `c_attn`.",
            "The logits use the token embedding, without a bias.",
            "In a left-padded prompt, position 0 is the first real token.",
        ),
        prefix=FAMILIES["gpt2"].prefix,
        family="gpt2",
        tutorials={"PyTorch": "port-pytorch", "Keras": "port-keras", "Flax": "port-flax"},
    ),
    Model(
        name="llama3",
        title="Llama 3",
        summary="Grattafiori et al. 2024, Llama 3.1 8B: decoder-only, RMS norms, RoPE, SwiGLU, grouped heads",
        preset="llama31_8b",
        table=FAMILIES["llama"].table,
        case="transformer/llama",
        classes=("LlamaModel", "LlamaForCausalLM", "LlamaForSequenceClassification"),
        notes=(
            "Its linear layers store `out in`, so every kernel is transposed. Heads are consecutive blocks of the output axis. A key and "
            "value head serves several consecutive query heads.",
            "Features j and j + k/2 of a head rotate together; Hugging Face reordered the rows of `q_proj` and `k_proj` for this. In "
            "Meta's own files neighbors rotate together, and the names differ.",
            "`up_proj` is multiplied by the SiLU of `gate_proj`.",
            "No tensor holds positions. The frequencies follow from `rope_theta` and the scaling in `config.json`.",
            "The logits have their own kernel; in Llama 3.2 1B and 3B they are tied to the token embedding.",
            "In half precision, its norms round before multiplying by their scale.",
        ),
        prefix=FAMILIES["llama"].prefix,
        family="llama",
        tutorials={"PyTorch": "port-llama", "Flax": "port-llama-flax"},
    ),
    Model(
        name="mixtral",
        title="Mixtral",
        summary="Jiang et al. 2024, Mixtral 8x7B: Llama with eight experts in place of each feed-forward network, two of them per token",
        preset="mixtral_8x7b",
        table=FAMILIES["mixtral"].table,
        case="transformer/mixtral",
        classes=("MixtralModel", "MixtralForCausalLM", "MixtralForSequenceClassification"),
        notes=(
            "`block_sparse_moe.gate` is the router. In an expert, `w1` is the gate, `w3` the hidden layer and `w2` the output.",
            "The softmax is over all experts, and the weights of the chosen are divided by their sum. This equals a softmax of the chosen.",
            "Files have a tensor for each expert. The classes of transformers 5 keep the experts of a layer in one tensor, with gate and "
            "hidden layer together in `mlp.experts.gate_up_proj`.",
            "Experts are numbered: sort their names by number, not as text.",
            "Everything else is as in Llama 3, without scaled frequencies.",
        ),
        prefix=FAMILIES["mixtral"].prefix,
        family="mixtral",
    ),
    Model(
        name="gpt_oss",
        title="gpt-oss",
        summary="OpenAI 2025, gpt-oss 20B: attention sinks, a window in every other layer, 32 experts with biases and limited gates",
        preset="gpt_oss_20b",
        table=FAMILIES["gpt_oss"].table,
        case="transformer/gpt_oss",
        classes=("GptOssModel", "GptOssForCausalLM", "GptOssForSequenceClassification"),
        notes=(
            "The published files are quantized (MXFP4): `gate_up_proj_blocks` and `gate_up_proj_scales`. Save them in bfloat16 first.",
            "Kernels of experts store `in out`, all other kernels `out in`. Gate and hidden layer alternate: the even columns of "
            "`gate_up_proj` are the gate.",
            "The gate is clipped to at most 7, the hidden layer to at most 7 in size; then 1 is added to the hidden layer.",
            "The activation is `x sigmoid(1.702 x)`.",
            "A token chooses four experts by the router's logits, and its weights are a softmax of these four.",
            "`sinks` has one number for each head, which joins the softmax of the scores. It is neither scaled nor masked.",
            "The first layer has a window, the second has none, and so on. All layers have the same frequencies (YaRN).",
        ),
        prefix=FAMILIES["gpt_oss"].prefix,
        family="gpt_oss",
    ),
)
