"""The measurements: each workload is one or two tasks, whose rows are timed together."""

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from reference_numpy import TransformerConfig, preset

PADDING, START, END = 0, 1, 2  # token ids
# size -> model width, heads, layers per stack, hidden width, vocabulary
SIZES = {
    "base": (512, 8, 6, 2048, 8192), "small": (128, 4, 2, 512, 1000), "tiny": (32, 4, 1, 64, 101),
    "bert_base": (768, 12, 12, 3072, 30522), "gpt2_small": (768, 12, 12, 3072, 50257), "llama_100m": (768, 12, 12, 2048, 32000),
    "experts": (512, 8, 4, 1024, 8192),
}  # fmt: skip
# model -> family name if it has published models, preset, and changed fields
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "paper_base": ("", "paper_base", {"attention_bias": True, "output_bias": True, "epsilon": 1e-5, "padding_id": PADDING}),
    "bert_base": ("BERT", "bert_base", {"pooler": False, "masked_language_head": False}),
    "gpt2_small": ("GPT-2", "gpt2_small", {}),
    "llama2_7b": ("Llama", "llama2_7b", {"key_value_heads": 4, "tie_logits": True}),
    "mixtral": ("Mixtral", "llama2_7b", {"key_value_heads": 4, "experts": 8, "experts_per_token": 2, "expert_width": 1}),
}
PRECISIONS = {"cpu": ("float32",), "cuda": ("float32", "tf32", "bfloat16")}


@dataclass(frozen=True)
class Task:
    """One table. kind: forward, training, encoder (its forward pass only), greedy or beam.

    length: tokens of the source, and of the target in a forward pass; prompt tokens of a
    decoder-only model. new_tokens: exact number of tokens of every output.
    """

    name: str  # the workload's name and the task's distinction
    kind: str
    batch: int
    length: int
    new_tokens: int = 0
    beams: int = 1
    model: str = "paper_base"  # the model's choices, a key of MODELS
    size: str = "base"
    padding: float = 0.2  # share of right padding in the source, or in both sides
    precisions: tuple[str, ...] = ()  # overrides the device's precisions
    peers: bool = True
    ceiling: bool = False  # also time plain matrix products
    skips: bool = False  # also time our forward pass with skip_padding
    apart: bool = False  # one framework after the other, since together they exceed the memory
    memory: str = ""  # measures memory: "alone" (a process per row), or "together" (with the other rows)

    @property
    def workload(self) -> str:
        return self.name.partition(" ")[0]

    @property
    def decodes(self) -> bool:
        return self.kind in ("greedy", "beam")

    @property
    def published(self) -> str:
        """The peers' family; "" for layers, or models of the paper's kind."""
        return MODELS[self.model][0]

    @property
    def title(self) -> str:
        config = config_of(self)
        sides = f"{self.length}/{self.length}" if config.encoder_layers else self.length
        read = f"{self.length} {'source' if config.encoder_layers else 'prompt'} tokens"
        what = {
            "forward": f"Forward pass, {sides} tokens",
            "training": f"Training step, {sides} tokens",
            "encoder": f"Encoder, {self.length} tokens",
            "greedy": f"Greedy search, {read}, {self.new_tokens} new ones",
            "beam": f"Beam search, {self.beams} beams, {read}, {self.new_tokens} new ones",
        }[self.kind]
        layers = "+".join(str(count) for count in (config.encoder_layers, config.decoder_layers) if count)
        groups = f" in {config.key_value_heads} groups" if config.key_value_heads < config.heads else ""
        heads = f"d {config.model_width}, {config.heads} heads{groups}"
        heads += f", {config.experts} experts, {config.experts_per_token} chosen" if config.experts else ""
        sizes = f"{heads}, {layers} layers, f {config.feed_forward_width}, v {config.source_vocabulary}"
        padding = f"{100 * self.padding:.0f} % padding" if self.padding else "no padding"
        return f"{self.name}: " + ", ".join(filter(None, (what, f"batch {self.batch}", self.published, sizes, padding)))

    def precisions_on(self, device: str, of: Collection[str] = ("float32", "tf32", "bfloat16")) -> tuple[str, ...]:
        """Returns a framework's precisions. bfloat16 parameters are not trained."""
        found = self.precisions or PRECISIONS[device]
        return tuple(name for name in found if name in of and not (self.kind == "training" and name == "bfloat16"))


@dataclass(frozen=True)
class Series:
    """A task at growing sizes. axis: the label of what grows."""

    name: str
    axis: str
    tasks: tuple[Task, ...]

    def value(self, task: Task) -> int:
        return {"length": task.length, "batch": task.batch, "new tokens": task.new_tokens}[self.axis]


BOTH, INT8 = ("float32", "bfloat16"), ("float32", "int8")
SHARES = (0.0, 0.2, 0.5)  # shares of padding
LLAMA: dict[str, Any] = {"model": "llama2_7b", "size": "llama_100m", "padding": 0.0}
MIXTRAL: dict[str, Any] = {"model": "mixtral", "size": "experts", "padding": 0.0}
WORKLOADS: dict[str, tuple[Task, ...]] = {
    "W1": (
        Task("W1 0 %", "forward", 16, 64, padding=0.0, ceiling=True),
        Task("W1 20 %", "forward", 16, 64, ceiling=True, skips=True),
        Task("W1 50 %", "forward", 16, 64, padding=0.5, ceiling=True, skips=True),
    ),
    "W2": tuple(Task(f"W2 {100 * share:.0f} %", "training", 16, 64, padding=share) for share in SHARES),
    "W3": (Task("W3", "greedy", 8, 64, 64),),
    "W4": (Task("W4", "beam", 4, 64, 64, 4),),
    "W5": (Task("W5 forward", "forward", 2, 16, size="small"), Task("W5 greedy", "greedy", 2, 16, 32, size="small")),
    "W6": (Task("W6", "encoder", 1, 2048, padding=0.0, memory="alone"),),
    "W7": (
        Task("W7 forward", "forward", 16, 64, precisions=BOTH, peers=False),
        Task("W7 greedy", "greedy", 8, 64, 64, precisions=BOTH, peers=False),
    ),
    "W8": (Task("W8", "encoder", 16, 128, model="bert_base", size="bert_base", ceiling=True),),
    "W9": (Task("W9", "greedy", 4, 128, 64, model="gpt2_small", size="gpt2_small", padding=0.0),),
    "W10": (Task("W10", "greedy", 8, 64, 64, precisions=INT8), Task("W10 small", "greedy", 2, 16, 32, size="small", precisions=INT8)),
    "W11": (
        Task("W11 forward", "forward", 4, 512, **LLAMA, precisions=INT8, ceiling=True, apart=True),
        Task("W11 training", "training", 4, 256, **LLAMA, apart=True),
        Task("W11 greedy", "greedy", 4, 128, 64, **LLAMA, precisions=INT8, apart=True),
    ),
    "W12": tuple(
        Task(f"W12 {kind} {batch}", kind, batch, 128, 64 * (kind == "greedy"), **MIXTRAL)
        for kind in ("forward", "training", "greedy")
        for batch in (1, 8)
    ),
}
_ENCODER, _FORWARD, _GREEDY = (
    Task("S1", "encoder", 1, 64, padding=0.0, memory="together"),
    Task("S2", "forward", 1, 64, memory="together"),
    Task("S3", "greedy", 8, 64, 16, memory="together"),
)
SCALING = (
    Series("encoder by length", "length", tuple(dataclasses.replace(_ENCODER, length=64 << step) for step in range(7))),
    Series("forward pass by batch", "batch", tuple(dataclasses.replace(_FORWARD, batch=1 << step) for step in range(7))),
    Series("greedy search by new tokens", "new tokens", tuple(dataclasses.replace(_GREEDY, new_tokens=16 << step) for step in range(7))),
)


def tiny(task: Task) -> Task:
    """Returns the same task at a size for tests."""
    length, new_tokens = min(task.length, 12 if task.length < 128 else 24), min(task.new_tokens, 6)
    return dataclasses.replace(task, size="tiny", batch=min(task.batch, 3), length=length, new_tokens=new_tokens)


def config_of(task: Task) -> TransformerConfig:
    """Returns the sizes with choices that the peers support: torch's, or Marian's for searches.

    Grouped heads have at least two heads per group.
    """
    width, heads, layers, hidden, vocabulary = SIZES[task.size]
    _, name, changes = MODELS[task.model]
    config = preset(name, **changes)
    groups = heads if config.key_value_heads == config.heads else min(config.key_value_heads, heads // 2)
    config = config.replace(
        source_vocabulary=vocabulary, target_vocabulary=vocabulary, model_width=width, heads=heads, key_value_heads=groups,
        key_size=width // heads, value_size=width // heads, feed_forward_width=hidden, expert_width=hidden if config.experts else 0,
        encoder_layers=layers if config.encoder_layers else 0, decoder_layers=layers if config.decoder_layers else 0,
    )  # fmt: skip
    stock = config.cross_attention and not task.decodes
    return config.replace(share_embeddings=False, tie_logits=False, final_norm=True) if stock else config
