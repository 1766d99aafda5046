"""Conversations as texts: the chat template of a folder, applied as `transformers` applies it.

Source: transformers/utils/chat_template_utils.py and `PreTrainedTokenizerBase.apply_chat_template`, 5.23.
"""

import importlib.metadata
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..checkpoints.hugging_face.writing import TEMPLATES
from ..reading import read_text
from .tokenizer import Tokenizer

FILE, DEFAULT = "chat_template.jinja", "default"
_REASONING = ("reasoning_content", "thinking", "reasoning")  # names of a message's reasoning, the standard one first

Message = Mapping[str, Any]


class Chat:
    """The chat template of a folder.

    Raises ValueError if the folder has none, several without a default one, or one that is no template.
    """

    def __init__(self, folder: Path, tokenizer: Tokenizer) -> None:
        self._special = tokenizer.special
        try:
            self._template = _environment().from_string(_text(folder, tokenizer.templates))
        except jinja2.TemplateError as error:
            raise ValueError(f"the chat template of {folder} is no template: {error}") from None

    def render(self, messages: Sequence[Message]) -> str:
        """Returns the text that the model continues with the answer to these messages, special tokens included.

        Raises ValueError on messages that the template refuses.
        """
        known = [_with_reasoning({name: value for name, value in message.items() if value is not None}) for message in messages]
        given = {"messages": known, "tools": None, "documents": None, "add_generation_prompt": True}
        try:
            return self._template.render(**self._special, **given)
        except Exception as error:  # whatever an expression of the template raises
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


class _Generation(Extension):
    """The block `{% generation %}`, which marks what the model said, for training; it is its content."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_content"), [], [], body).set_lineno(line)

    def _content(self, caller: Any) -> str:
        return str(caller())


class _Dict:
    """`dict` in a template, without its attributes."""

    def __call__(self, *arguments: Any, **named: Any) -> dict[Any, Any]:
        return dict(*arguments, **named)

    def fromkeys(self, *arguments: Any) -> dict[Any, Any]:
        return dict.fromkeys(*arguments)


class _Namespace(jinja2.utils.Namespace):
    """`namespace` in a template, without names that begin with an underscore, which lead to Python's own."""

    def __init__(*arguments: Any, **named: Any) -> None:
        self, *others = arguments  # so that self may be one of the names
        attributes = dict(*others, **named)
        for name in attributes:
            _require_public(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _require_public(name)
        super().__setitem__(name, value)


def _require_public(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a chat template cannot store {name!r} in a namespace")


def _raise(message: Any) -> None:
    raise jinja2.TemplateError(message)


def _now(format: str) -> str:
    return datetime.now().strftime(format)


def _to_json(
    x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:  # fmt: skip
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment() -> ImmutableSandboxedEnvironment:
    """Returns what a template may use: templates come from others, and run in a sandbox that changes nothing, of 3.1.6 or later."""
    installed = importlib.metadata.version("jinja2")
    if tuple(int(part) for part in installed.split(".")[:3] if part.isdigit()) < (3, 1, 6):
        raise ValueError(f"chat templates need Jinja2 3.1.6, since templates can leave the sandbox of earlier ones; got {installed}")
    result = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    result.filters["tojson"] = _to_json
    result.globals |= {"raise_exception": _raise, "strftime_now": _now, "dict": _Dict(), "namespace": _Namespace}
    return result
