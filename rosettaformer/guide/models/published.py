"""The models that have a page: their presets, their tables of tensors, and the case whose forward pass is followed."""

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
    """A field of the config, the model's value, and the paper's if it differs."""

    field: str
    value: str
    paper: str


@dataclass(frozen=True)
class Model:
    """A published model.

    preset: its config. table: the tensors of its checkpoints; prefix: precedes the names of some of them, in files of a class with a head.
    case: of the suite, with the model's choices at a small size. classes: those that write these checkpoints. notes: what its porters
    need to know beside the tensors. tutorials: the framework -> the page that ports it from an empty file. family: the
    `model_type` of its config.json, empty if it has none.
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
        """Its published sizes and choices."""
        return preset(self.preset)

    def choices(self) -> dict[str, list[Choice]]:
        """Every field of the config, by group."""
        own, paper = vars(self.config), vars(preset("paper_base"))
        return {
            group: [Choice(field, _shown(own[field]), "" if own[field] == paper[field] else _shown(paper[field])) for field in fields]
            for group, fields in TransformerConfig.groups().items()
        }


def _shown(value: Any) -> str:
    """Returns a value of a field as it is read: a scaling as its parameters, a sequence as its values."""
    if isinstance(value, RotaryScaling):
        return ", ".join(f"{name} {part}" for name, part in value.to_dict().items())
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


MODELS = (
    Model(
        name="transformer",
        title="The Transformer of the paper",
        summary="Vaswani et al. 2017: encoder and decoder, post-norm, sinusoidal positions, tied embeddings",
        preset="paper_base",
        table=torch_layout.TABLE,
        case="transformer/paper_base",
        classes=("torch.nn.Transformer", "nn.TransformerEncoderLayer", "nn.TransformerDecoderLayer"),
        notes=(
            "`torch.nn.Transformer` is this model without its embeddings, its positions and its logits.",
            "Query, key and value are one tensor, `in_proj_weight`. PyTorch's linear layers hold `out in`, so every kernel is transposed.",
            "Embeddings and logits stand around the module under names of your own. `rosettaformer convert` takes these names as "
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
            "Its linear layers hold `out in`, so every kernel is transposed. Heads are consecutive stretches of the output axis.",
            "Its GELU has the error function, and its epsilon is 1e-12. The frameworks' defaults are larger.",
            "The layers of KerasHub's `BertBackbone` have the tanh form of GELU, and the head of its `BertMaskedLM` has an epsilon of "
            "1e-5. Read them off `layer.get_config()`.",
            "Position 0 is the first token of a row, padding or not.",
            "The decoder of the masked-language head is the table of the tokens. Its bias, `cls.predictions.bias`, is the head's own.",
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
            "Its layers are `Conv1D`s, which hold `in out`, so no kernel is transposed.",
            "Query, key and value are thirds of one tensor, `c_attn`.",
            "The logits use the table of the tokens, without a bias.",
            "Position 0 is the first real token, where a prompt is padded on the left.",
        ),
        prefix=FAMILIES["gpt2"].prefix,
        family="gpt2",
        tutorials={"PyTorch": "port-pytorch", "Keras": "port-keras", "Flax": "port-flax"},
    ),
    Model(
        name="llama3",
        title="Llama 3",
        summary="Grattafiori et al. 2024, Llama 3.1 of 8 billion: decoder-only, RMS norms, rotary positions, SwiGLU, grouped heads",
        preset="llama31_8b",
        table=FAMILIES["llama"].table,
        case="transformer/llama",
        classes=("LlamaModel", "LlamaForCausalLM", "LlamaForSequenceClassification"),
        notes=(
            "Its linear layers hold `out in`, so every kernel is transposed. Heads are consecutive stretches of the output axis. A head "
            "of keys and values serves several consecutive heads of queries.",
            "The features j and j + k/2 of a head rotate together. Hugging Face has sorted the rows of `q_proj` and `k_proj` for this. In "
            "Meta's own files neighbours rotate together, and the names differ.",
            "`gate_proj` goes through SiLU and multiplies `up_proj`.",
            "No tensor holds a position. The frequencies follow from `rope_theta` and the scaling of `config.json`.",
            "The logits have a kernel of their own. In Llama 3.2 of 1 and 3 billion it is the table of the tokens.",
            "In half precision its norms round before their scale multiplies.",
        ),
        prefix=FAMILIES["llama"].prefix,
        family="llama",
        tutorials={"PyTorch": "port-llama", "Flax": "port-llama-flax"},
    ),
)
