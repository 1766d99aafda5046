"""Tiny random transformers models, and the names of the tensors they are saved with.

`python tests/support/huggingface_models.py` writes the names into tests/data/huggingface_names.json.
"""

import json
import tempfile
from pathlib import Path

import safetensors

NAMES = Path(__file__).parents[1] / "data" / "huggingface_names.json"
ENCODER = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
BART = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
        "encoder_ffn_dim": 8, "decoder_ffn_dim": 8,
        "pad_token_id": 1, "decoder_start_token_id": 1, "forced_eos_token_id": None}  # fmt: skip
GPT2 = {"n_embd": 8, "n_layer": 1, "n_head": 2}
T5 = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
LLAMA = ENCODER | {"num_key_value_heads": 2, "head_dim": 4}

# class -> the family recognized from its names only, its config class, and the config's sizes
MODELS = {
    "BertModel": ("BERT", "BertConfig", ENCODER),
    "BertForMaskedLM": ("BERT", "BertConfig", ENCODER),
    "RobertaForMaskedLM": ("RoBERTa", "RobertaConfig", ENCODER),
    "XLMRobertaModel": ("BERT", "XLMRobertaConfig", ENCODER),
    "DistilBertModel": ("DistilBERT", "DistilBertConfig", {"dim": 8, "n_layers": 1, "n_heads": 2, "hidden_dim": 8}),
    "DistilBertForMaskedLM": ("DistilBERT", "DistilBertConfig", {"dim": 8, "n_layers": 1, "n_heads": 2, "hidden_dim": 8}),
    "AlbertModel": ("ALBERT", "AlbertConfig", ENCODER | {"embedding_size": 8}),
    "GPT2Model": ("GPT-2", "GPT2Config", GPT2),
    "GPT2LMHeadModel": ("GPT-2", "GPT2Config", GPT2),
    "GPTNeoXForCausalLM": ("GPT-NeoX", "GPTNeoXConfig", ENCODER),
    "OPTForCausalLM": ("OPT", "OPTConfig", ENCODER | {"ffn_dim": 8, "word_embed_proj_dim": 8}),
    "MarianModel": ("Marian", "MarianConfig", BART | {"vocab_size": 50}),
    "MarianMTModel": ("Marian", "MarianConfig", BART | {"vocab_size": 50}),
    "BartModel": ("BART", "BartConfig", BART),
    "BartForConditionalGeneration": ("BART", "BartConfig", BART),
    "MBartForConditionalGeneration": ("mBART", "MBartConfig", BART),
    "PegasusForConditionalGeneration": ("Pegasus", "PegasusConfig", BART),
    "M2M100ForConditionalGeneration": ("Pegasus", "M2M100Config", BART),
    "WhisperForConditionalGeneration": ("Whisper", "WhisperConfig", BART | {"vocab_size": 60, "num_mel_bins": 8}),
    "T5ForConditionalGeneration": ("T5", "T5Config", T5),
    "T5EncoderModel": ("T5", "T5Config", T5),
    "LlamaForCausalLM": ("Llama", "LlamaConfig", LLAMA),
    "LlamaModel": ("Llama", "LlamaConfig", LLAMA),
    "MistralForCausalLM": ("Llama", "MistralConfig", LLAMA),
    "Qwen2ForCausalLM": ("Llama", "Qwen2Config", LLAMA),
}


def saved_names(name: str) -> list[str]:
    """Returns the tensor names with which the installed library saves a random model of that class."""
    import transformers

    _, config, sizes = MODELS[name]
    with tempfile.TemporaryDirectory() as folder:
        getattr(transformers, name)(getattr(transformers, config)(**{"vocab_size": 60} | sizes)).save_pretrained(folder)
        with safetensors.safe_open(Path(folder, "model.safetensors"), framework="np") as file:
            return sorted(file.keys())


if __name__ == "__main__":
    rows = (f"{json.dumps(name)}: {json.dumps(saved_names(name))}" for name in MODELS)
    NAMES.write_text("{\n" + ",\n".join(rows) + "\n}\n")
