"""Small tokenizers and chat templates in the style of those published with decoders since Llama."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from decoder_folders import drawn
from hugging_face_folders import made
from model_folders import TEXT

LLAMA = (
    "{{- bos_token }}\n"
    "{%- if not date_string is defined %}{%- set date_string = strftime_now('%d %b %Y') %}{%- endif %}\n"
    "{%- set ns = namespace(system='') %}\n"
    "{%- if messages[0]['role'] == 'system' %}\n"
    "    {%- set ns.system = messages[0]['content'] | trim %}\n"
    "    {%- set messages = messages[1:] %}\n"
    "{%- endif %}\n"
    "{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday is ' + date_string + '.\\n' }}\n"
    "{{- ns.system + '<|eot_id|>' }}\n"
    "{%- if tools is not none %}{{- tools | tojson(indent=4) }}{%- endif %}\n"
    "{%- for message in messages %}\n"
    "    {%- if message.role not in ['user', 'assistant', 'ipython'] %}{% continue %}{% endif %}\n"
    "    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}\n"
)
QWEN = (
    "{%- if messages[0]['role'] != 'system' %}{{- '<|im_start|>system\\nYou help.<|im_end|>\\n' }}{%- endif %}\n"
    "{%- for message in messages %}\n"
    "    {%- if message.role == 'assistant' and message.reasoning_content is string %}\n"
    "        {{- '<think>' + message.reasoning_content.strip('\\n') + '</think>' }}\n"
    "    {%- endif %}\n"
    "    {%- if message.tool_calls %}\n"
    "        {%- for call in message.tool_calls %}{{- '<call>' }}{{- call.arguments | tojson }}{{- '</call>\\n' }}{%- endfor %}\n"
    "    {%- elif loop.first or message.content %}\n"
    "        {{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content ~ '<|im_end|>' ~ '\\n' }}\n"
    "    {%- endif %}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n"
    "    {{- '<|im_start|>assistant\\n' }}\n"
    "{%- endif %}\n"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
)
PHI = (
    "{% for message in messages %}\n"
    "{% if message['role'] in ('system', 'user') %}{{ '<|' + message['role'] + '|>\n' + message['content'] + '<|end|>\n' }}\n"
    "{% elif message['role'] == 'assistant' %}\n"
    "    {% generation %}\n"
    "{{ '<|assistant|>\n' + message['content'] + '<|end|>\n' }}\n"
    "    {% endgeneration %}\n"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)


class Style(NamedTuple):
    """special: special tokens; `named` has those with a name. made: how a text becomes tokens. first: whether a text begins with
    the BOS token. settings: entries of tokenizer_config.json.
    """

    made: str
    special: tuple[str, ...]
    named: dict[str, str]
    first: bool
    template: str
    settings: dict[str, Any]


_HEADERS = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
STYLES = {
    "llama": Style(
        "bytes", ("<|begin_of_text|>", "<|end_of_text|>", *_HEADERS), {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
        True, LLAMA, {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 131072, "clean_up_tokenization_spaces": True},
    ),
    "qwen": Style(
        "qwen", ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
        False, QWEN, {"tokenizer_class": "Qwen2Tokenizer", "bos_token": None, "add_prefix_space": False, "add_bos_token": False},
    ),
    "gemma": Style(
        "gemma", ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>"),
        {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"},
        True, GEMMA, {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True, "model_max_length": 10**30},
    ),
    "phi": Style(
        "pieces", ("<unk>", "<s>", "</s>", "<|endoftext|>", "<|assistant|>", "<|system|>", "<|user|>", "<|end|>"),
        {"bos_token": "<s>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", "unk_token": "<unk>"},
        False, PHI, {"tokenizer_class": "LlamaTokenizer", "add_bos_token": False, "legacy": False},
    ),
    "mistral": Style(
        "pieces", ("<unk>", "<s>", "</s>", "[INST]", "[/INST]"), {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
        True, "{{ bos_token }}{% for m in messages %}[INST] {{ m['content'] }} [/INST]{% endfor %}",
        {"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": True, "legacy": True},
    ),
}  # fmt: skip
OF_FAMILY = {
    "llama": "llama", "smollm3": "llama", "olmo2": "llama", "mistral": "mistral", "qwen2": "qwen", "qwen3": "qwen", "gemma": "gemma",
    "gemma2": "gemma", "gemma3_text": "gemma", "phi3": "phi", "starcoder2": "llama", "gpt_neo": "llama", "opt": "llama", "glm": "llama",
}  # fmt: skip


def saved_tokenizer(folder: Path, style: str, **settings: Any) -> dict[str, int]:
    """Trains and saves a tokenizer of that style with its chat template; returns its token ids."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    kind = STYLES[style]
    made = Tokenizer(models.BPE(unk_token=kind.named.get("unk_token"), fuse_unk=True))
    if kind.made in ("bytes", "qwen"):
        words = pre_tokenizers.Split(" ?[^ ]+| +", "isolated")
        made.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        made.normalizer, made.decoder = normalizers.NFC() if kind.made == "qwen" else None, decoders.ByteLevel()
        alphabet, raw = pre_tokenizers.ByteLevel.alphabet(), []
    else:
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first" if kind.made == "pieces" else "never", split=True)
        strip = [decoders.Strip(" ", left=1)] if kind.made == "pieces" else []
        made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
        alphabet, raw = ["▁"], [f"<0x{byte:02X}>" for byte in range(256)]
    special = [*kind.special, *raw]
    made.train_from_iterator(
        TEXT, trainers.BpeTrainer(vocab_size=360, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    )
    first = kind.named["bos_token"] if kind.first else None
    if first:
        id_ = made.token_to_id(first)
        made.post_processor = processors.TemplateProcessing(
            single=f"{first}:0 $A:0", pair=f"{first}:0 $A:0 {first}:1 $B:1", special_tokens=[(first, id_)]
        )
    whole = json.loads(made.to_str())
    whole["added_tokens"] = [one for one in whole["added_tokens"] if one["content"] not in raw]
    whole["model"]["byte_fallback"] = bool(raw)
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    entries = kind.settings | kind.named | {"chat_template": kind.template} | settings
    (folder / "tokenizer_config.json").write_text(json.dumps({name: value for name, value in entries.items() if value is not ...}))
    return dict(made.get_vocab())


def decoder(folder: Path, family: str, seed: int = 0, style: str = "", **config: Any) -> Any:
    """Saves a random model of that family with a tokenizer in its style; returns the model."""
    style = style or OF_FAMILY[family]
    ids = saved_tokenizer(folder, style)
    named = {f"{name.removesuffix('_token')}_token_id": ids[token] for name, token in STYLES[style].named.items() if name != "unk_token"}
    model = drawn(family, seed)
    model = model._replace(settings=model.settings | {"vocab_size": len(ids)} | named | config, dtype="float32")
    result = made(model, seed)
    result.save_pretrained(folder)
    return result
