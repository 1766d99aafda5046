"""Conversations as texts: the chat template of a folder, applied as `transformers` applies it.

Source: transformers/utils/chat_template_utils.py and `PreTrainedTokenizerBase.apply_chat_template`, 5.23.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..checkpoints.hugging_face.writing import TEMPLATES
from ..reading import read_text
from .templates import Renderer
from .tokenizer import Tokenizer

FILE, DEFAULT = "chat_template.jinja", "default"
_REASONING = ("reasoning_content", "thinking", "reasoning")  # names of a message's reasoning, the standard one first

Message = Mapping[str, Any]


class Chat:
    """The chat template of a folder. renderer: runs it.

    Raises ValueError if the folder has none, several without a default one, or one that is no template.
    """

    def __init__(self, folder: Path, tokenizer: Tokenizer, renderer: Renderer) -> None:
        self._special, self._renderer = tokenizer.special, renderer
        self._template = _text(folder, tokenizer.templates)
        try:
            renderer.check(self._template)
        except ValueError as error:
            raise ValueError(f"the chat template of {folder} is no template: {error}") from None

    def render(self, messages: Sequence[Message]) -> str:
        """Returns the text that the model continues with the answer to these messages, special tokens included.

        Raises ValueError on messages that the template refuses.
        """
        known = [_with_reasoning({name: value for name, value in message.items() if value is not None}) for message in messages]
        given = {"messages": known, "tools": None, "documents": None, "add_generation_prompt": True}
        try:
            return self._renderer.render(self._template, self._special | given)
        except ValueError as error:
            raise ValueError(f"the chat template does not take the messages: {error}") from None


def messages_of(text: str, system: str | None = None) -> list[Message]:
    """Returns the messages of a text: those of a conversation, if it is a JSON list of objects with their roles, otherwise one of the user.

    system: what stands first as the message of the system. Raises ValueError if the conversation has one, too.
    """
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        said = None
    of_conversation = isinstance(said, list) and bool(said) and all(isinstance(one, dict) and "role" in one for one in said)
    messages: list[Message] = said if of_conversation else [{"role": "user", "content": text}]
    if system is None:
        return messages
    if messages[0]["role"] == "system":
        raise ValueError("a conversation has one message of the system; got --system, too")
    return [{"role": "system", "content": system}, *messages]


def _text(folder: Path, templates: Any) -> str:
    """Returns the template of a folder: of its files, otherwise of its tokenizer_config.json, which says these."""
    files = {DEFAULT: folder / FILE} if (folder / FILE).is_file() else {}
    files |= {file.stem: file for file in sorted((folder / TEMPLATES).glob("*.jinja"))}
    named: Any = {name: read_text(file) for name, file in files.items()} or templates
    if not named:
        raise ValueError(f"a chat needs a chat template; {folder} has neither a {FILE} nor a chat_template in its tokenizer_config.json")
    if isinstance(named, list):
        named = {one["name"]: one["template"] for one in named}
    if isinstance(named, dict) and DEFAULT not in named:
        raise ValueError(f"one of the chat templates of {folder} must be named {DEFAULT}; got {', '.join(sorted(named))}")
    return str(named[DEFAULT] if isinstance(named, dict) else named)


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """Returns the message with its reasoning under the names that templates read."""
    reasoning = next((message[name] for name in _REASONING if name in message), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}
