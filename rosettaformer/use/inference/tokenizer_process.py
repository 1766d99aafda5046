"""Runs a folder's tokenizer from `transformers` in a process with limited memory.

Tokenizers and chat templates are untrusted: they may need any amount of memory, crash the process
or never end. Nothing is downloaded, and no code in the folder runs.
"""

import functools
import json
import re
import resource
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...common.processes import Answer, message, serve_methods
from ...common.processes.text import printable

MEMORY = 3 << 30  # bytes, the limit of the process
FRAMEWORKS = ("torch", "tensorflow", "keras", "jax", "flax", "scipy", "sklearn", "pandas", "PIL")
SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_JINJA = (3, 1, 6)  # templates can escape the sandbox of earlier releases
_ADVICE = re.compile(r"https?://|hub|from_pretrained|_code|sure")
_SENTENCE = re.compile(r"(?<=[.;!?])\s+|\n+")


class Tokenizers:
    """The opened tokenizers, identified by the texts that opened them."""

    def __init__(self) -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        sys.modules.update(dict.fromkeys(FRAMEWORKS))  # type: ignore[arg-type]  # not needed by tokenizers
        import transformers

        transformers.logging.set_verbosity(transformers.logging.CRITICAL)

    def facts(self, *opened: str) -> np.ndarray:
        """Returns the properties of a tokenizer, see `Tokenizer`.

        own: size of the vocabulary. every: the same with added tokens.
        """
        made = _open(*opened)
        added, every = made.get_added_vocab(), made.get_vocab()
        own = (id_ for token, id_ in every.items() if token not in added)
        named = {name: getattr(made, name) for name in SPECIAL}
        return _sent({
            "own": 1 + max(own, default=-1), "every": 1 + max(every.values(), default=-1),
            "special": {name: made.convert_tokens_to_ids(token) for name, token in named.items() if token is not None},
            "left": made.padding_side == "left", "chat": bool(made.chat_template),
            "segments": "token_type_ids" in made.model_input_names,
        })  # fmt: skip

    def encode(self, text: str, *opened: str) -> np.ndarray:
        """Encodes a text."""
        return _sent(_open(*opened)(json.loads(text))["input_ids"])

    def rows(self, texts: str, limit: int, *opened: str) -> np.ndarray:
        """Encodes texts and pairs. limit: the length to cut to; 0 for the tokenizer's own.

        Returns ids, segments, and where the second text starts.
        """
        made, found = _open(*opened), []
        most = min(limit or made.model_max_length, made.model_max_length)
        cut = {"truncation": True, "max_length": int(most)} if most < 1 << 30 else {}
        for text in json.loads(texts):
            row = made(*([text] if isinstance(text, str) else text), return_token_type_ids=True, **cut)
            of_text = row.sequence_ids(0) if made.is_fast else row["token_type_ids"]
            second = of_text.index(1) if 1 in of_text else len(of_text)
            found.append((row["input_ids"], row["token_type_ids"], second))
        return _sent(found)

    def chat(self, messages: str, *opened: str) -> np.ndarray:
        """Encodes messages with the chat template."""
        import jinja2

        if tuple(int(part) for part in jinja2.__version__.split(".")[:3] if part.isdigit()) < _JINJA:
            raise ValueError(f"chat templates need jinja2 3.1.6 or later; got {jinja2.__version__}. Upgrade jinja2")
        return _sent(_open(*opened).apply_chat_template(json.loads(messages), add_generation_prompt=True, return_dict=False))

    def decode(self, ids: str, special: bool, *opened: str) -> np.ndarray:
        """Decodes ids, by default without special tokens."""
        return _sent(_open(*opened).decode(json.loads(ids), skip_special_tokens=not special))

    def words(self, ids: str, *opened: str) -> np.ndarray:
        """Returns the vocabulary's spelling of each token, and its text if bytes are encoded."""
        made, numbers = _open(*opened), json.loads(ids)
        tokens = [token or f"<{id_}>" for id_, token in zip(numbers, made.convert_ids_to_tokens(numbers), strict=True)]
        of_bytes = made.is_fast and type(made.backend_tokenizer.decoder).__name__ == "ByteLevel"
        texts = [made.decode([id_]) if of_bytes else "\ufffd" for id_ in numbers]
        return _sent([tokens, [token if "\ufffd" in text else text for token, text in zip(tokens, texts, strict=True)]])


@functools.lru_cache(maxsize=4)
def _open(folder: str, model_type: str, named: str, number: str) -> Any:
    """Opens the tokenizer of a folder.

    model_type, named: the model's type and the tokenizer's class in config.json, which is not read
    again. number: makes a folder open again.
    """
    from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig

    try:
        config = AutoConfig.for_model(model_type)
    except ValueError:
        config = PreTrainedConfig()
    config.tokenizer_class = named or None
    return AutoTokenizer.from_pretrained(folder, config=config, local_files_only=True, trust_remote_code=False)


def _sent(value: Any) -> np.ndarray:
    """Serializes a value; as an array it is neither escaped nor cut."""
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def _reply(call: Callable[[], Any]) -> Answer:
    try:
        return "made", call()
    except MemoryError:
        return "error", f"it needs more than {MEMORY >> 30} GiB of memory"
    except BaseException as error:  # a panic in the tokenizers package is not an Exception
        return "error", _said(error)


def _said(error: BaseException) -> str:
    """Returns the error message without the library's advice."""
    if "trust_remote_code" in (text := message(error)):
        return "it needs custom code, which is never run"
    sentences: Sequence[str] = [one for one in _SENTENCE.split(text) if one and not _ADVICE.search(one)]
    return printable(f"{' '.join(sentences)} ({type(error).__name__})".strip(), 300)


if __name__ == "__main__":
    serve_methods(Tokenizers, _reply)
