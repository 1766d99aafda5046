"""Conversations: chat templates of the published kinds render what transformers renders, and `generate --chat` answers it."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from decoder_tokenizers import OF_FAMILY, STYLES, decoder, saved_tokenizer
from invoke import invoke, refused, succeeded
from kinds import conformance
from model_folders import NUMPY, edit

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from rosettaformer.inference.chat import Chat, messages_of  # noqa: E402
from rosettaformer.inference.templates import Renderer  # noqa: E402
from rosettaformer.inference.tokenizer import Tokenizer  # noqa: E402

SYSTEM, USER, MODEL = "You are <b>brief</b> & kind.", " What's the née fox?\n", "The fox\n jumps."
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one message": [{"role": "user", "content": USER}],
    "system": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": USER}],
    "several": [{"role": "user", "content": USER}, {"role": "assistant", "content": MODEL}, {"role": "user", "content": "And 😀?"}],
    "nulls and reasoning": [
        {"role": "user", "content": USER, "tool_calls": None}, {"role": "assistant", "reasoning": "\nHm.\n", "content": MODEL},
        {"role": "user", "content": "<|eot_id|><|im_end|><eos></s>"},
    ],
    "a tool": [
        {"role": "user", "content": USER}, {"role": "assistant", "content": "", "tool_calls": [{"arguments": {"ö": "<1>", "b": [1.5]}}]},
        {"role": "user", "content": "Go on."},
    ],
    "wrong order": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
    "no content": [{"role": "user"}],
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    saved_tokenizer(tmp_path, "llama")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return tmp_path


@pytest.fixture(scope="module")
def renderer() -> Iterator[Renderer]:
    with contextlib.closing(Renderer()) as made:
        yield made


@pytest.fixture
def chat(renderer: Renderer) -> Callable[[Path], tuple[Tokenizer, Chat]]:
    def made(folder: Path) -> tuple[Tokenizer, Chat]:
        tokenizer = Tokenizer(folder, None, json.loads((folder / "config.json").read_text()))
        return tokenizer, Chat(folder, tokenizer, renderer)

    return made


@pytest.mark.parametrize("style", STYLES)
def test_a_conversation_is_rendered_and_read_as_by_transformers(tmp_path: Path, style: str, chat) -> None:
    """Of the templates of Llama 3, Qwen, Gemma, Phi-3 and Mistral: text and ids, or the words with which a template refuses."""
    family = next(family for family, named in OF_FAMILY.items() if named == style)
    saved_tokenizer(tmp_path, style)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    library, (tokenizer, template) = transformers.AutoTokenizer.from_pretrained(tmp_path), chat(tmp_path)
    refusals = []
    for name, messages in CONVERSATIONS.items():
        try:
            wanted = library.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except Exception as error:
            refusals.append(name)
            with pytest.raises(ValueError) as caught:
                template.render(messages)
            assert str(caught.value) == f"the chat template does not take the messages: {error}"
            continue
        assert template.render(messages) == wanted
        ids = library.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert tokenizer.prompt(wanted, whole=True) == ids
        assert not STYLES[style].first or ids.count(library.bos_token_id) == 1
    if style == "gemma":
        assert refusals == ["system", "wrong order"]


TEMPLATES = {  # text -> how it ends
    "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.role }}{% endfor %}": "",
    "  {% if true %}\n  a\n  {% endif %}\n{{ dict(a=1).items() | list }}{{ dict.fromkeys('ab', 2) }}": "",
    "{% set ns = namespace(a=1, b=[]) %}{% for m in messages %}{% set ns.a = ns.a + 1 %}{% endfor %}{{ ns.a }}{{ tools is none }}": "",
    "{{ {'b': '<é>', 'a': [1, none]} | tojson }}{{ {'b': 1, 'a': 2} | tojson(indent=2, sort_keys=true) }}": "",
    "{{ strftime_now('%Y-%m') }}{{ documents }}{{ bos_token }}{{ unk_token }}{{ undefined_name }}": "",
    "{% generation %}{{ messages[0].content | upper }}{% endgeneration %}": "",
    "{{ messages.append(1) }}": "is unsafe",
    "{{ ''.__class__.__mro__ }}": "is unsafe",
    "{% set ns = namespace(_a=1) %}": "_a",
    "{% set ns = namespace() %}{% set ns._b = 1 %}": "_b",
    "{{ undefined_name.x }}": "is undefined",
    "{{ 1 + 'a' }}": "unsupported operand",
    "{{ raise_exception('no: ' ~ messages[0].role) }}": "no: user",
}


@pytest.mark.parametrize("text", TEMPLATES)
def test_a_template_may_use_what_transformers_gives_it_and_nothing_else(folder: Path, text: str, chat) -> None:
    edit(folder, "tokenizer_config.json", chat_template=text)
    messages = CONVERSATIONS["one message"]
    library, (_, template) = transformers.AutoTokenizer.from_pretrained(folder), chat(folder)
    try:
        wanted = library.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except Exception:
        assert TEMPLATES[text]
        with pytest.raises(ValueError, match=f"^the chat template does not take the messages: .*{TEMPLATES[text]}"):
            template.render(messages)
    else:
        assert not TEMPLATES[text] and template.render(messages) == wanted


def test_files_come_before_the_entry_and_the_default_one_is_taken(folder: Path, chat) -> None:
    """Of a list of templates with their names, as of files."""
    messages, others = CONVERSATIONS["one message"], folder / "additional_chat_templates"
    edit(folder, "tokenizer_config.json", chat_template=[{"name": name, "template": name} for name in ("tool_use", "default")])
    assert chat(folder)[1].render(messages) == "default"
    others.mkdir()
    (others / "rag.jinja").write_text("rag")
    (folder / "chat_template.jinja").write_text("file é\n")
    assert chat(folder)[1].render(messages) == "file é"
    library = transformers.AutoTokenizer.from_pretrained(folder)
    assert library.apply_chat_template(messages, tokenize=False) == "file é"
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ValueError, match=r"one of the chat templates of .* must be named default; got rag$"):
        chat(folder)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (..., r"a chat needs a chat template; .* has neither a chat_template.jinja nor a chat_template in its tokenizer_config.json$"),
        ([], r"a chat needs a chat template; "),
        ("{% if %}", r"the chat template of .* is no template: Expected an expression, got 'end of statement block'$"),
        (3, r"chat_template of .*tokenizer_config.json must be a text, or a list of templates with their names; got 3$"),
        ([{"name": "a"}], r"chat_template of .* must be a text, or a list of templates with their names; got \[\{'name': 'a'\}\]$"),
    ],
)
def test_a_folder_without_a_good_template_is_one_message(folder: Path, template: Any, message: str, chat) -> None:
    edit(folder, "tokenizer_config.json", chat_template=template)
    with pytest.raises(ValueError, match=message):
        chat(folder)


ENDLESS = {
    "loops": "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% for c in r %}{% endfor %}{% endfor %}{% endfor %}",
    "a power": "{{ 9 ** (9 ** 9) }}",
    "a long text": "{{ 'a' * 99999999999 }}",
    "a wide format": "{{ '%99999999999d' % 1 }}",
    "a recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "many blocks": "{% for a in [1] %}" * 300 + "{% endfor %}" * 300,
    "many brackets": "{{ " + "(" * 20000 + "1" + ")" * 20000 + " }}",
}


@pytest.mark.parametrize("name", [name if name in ("loops", "many brackets") else conformance(name) for name in ENDLESS])
def test_a_template_without_an_end_is_one_message_in_time(name: str) -> None:
    with contextlib.closing(Renderer(limit=1.0)) as renderer, pytest.raises(ValueError, match=r"\A[^\n]*\Z"):
        renderer.render(ENDLESS[name], {})


def test_a_text_is_a_message_of_the_user_or_a_conversation() -> None:
    user = [{"role": "user", "content": "a"}]
    assert messages_of("a") == user
    assert messages_of("a", SYSTEM) == [{"role": "system", "content": SYSTEM}, *user]
    for text in ("[1, 2]", "[]", '[{"a": 1}]', '{"role": "user"}', "[" * 10**5):
        assert messages_of(text) == [{"role": "user", "content": text}]
    several = CONVERSATIONS["several"]
    assert messages_of(json.dumps(several)) == several
    assert messages_of(json.dumps(several), SYSTEM) == [{"role": "system", "content": SYSTEM}, *several]
    with pytest.raises(ValueError, match="a conversation has one message of the system; got --system, too"):
        messages_of(json.dumps(CONVERSATIONS["system"]), SYSTEM)


def answered(folder: Path, model: Any, messages: list[dict[str, Any]], **options: Any) -> tuple[list[int], str]:
    """The ids that transformers answers with, and their text."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=False)
    found = model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **options)[0]
    whole, before = (tokenizer.decode(part, skip_special_tokens=True) for part in (found, ids[0]))
    before = before if whole.startswith(before) else before.rstrip("\n")  # bytes, as those that follow, and all are no character
    return found[ids.shape[1] :].tolist(), whole.removeprefix(before)


@pytest.mark.parametrize("family", ["llama", *map(conformance, ("qwen3", "gemma2", "phi3", "mistral"))])
def test_generate_answers_a_chat_as_transformers_does(tmp_path: Path, family: str) -> None:
    """Messages of the user and a conversation, in one batch; only the answers are printed."""
    model = decoder(tmp_path, family, 3)
    conversation = json.dumps(CONVERSATIONS["several"])
    found = succeeded("generate", tmp_path, *NUMPY, "--chat", "--json", "--max-new-tokens", 9, stdin=f"the quick fox\n{conversation}\n")
    for row, messages in zip(found.rows, (messages_of("the quick fox"), CONVERSATIONS["several"]), strict=True):
        assert (row["tokens"], row["text"]) == answered(tmp_path, model, messages, max_new_tokens=9)
    if family == "gemma2":
        words = ("--chat", "--system", SYSTEM, "--prompt", "a")
        assert refused("generate", tmp_path, *NUMPY, *words) == (
            "Error: 1 of 1 prompts has no answer: prompt 1: the chat template does not take the messages: System role not supported\n"
        )
    else:
        shown = succeeded("generate", tmp_path, *NUMPY, "--chat", "--system", SYSTEM, "--prompt", "the fox").out
        assert shown == answered(tmp_path, model, messages_of("the fox", SYSTEM), max_new_tokens=20)[1] + "\n"


def test_what_a_chat_needs_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder(tmp_path, "llama", 3)
    assert "--system has no effect without --chat" in refused("generate", tmp_path, *NUMPY, "--system", "a", "--prompt", "a")
    edit(tmp_path, "tokenizer_config.json", chat_template=None)
    assert f"Error: a chat needs a chat template; {tmp_path} has" in refused("generate", tmp_path, *NUMPY, "--chat", "--prompt", "a")
    assert invoke("generate", tmp_path, *NUMPY, "--prompt", "a").code == 0
    monkeypatch.setitem(sys.modules, "jinja2", None)
    errors = refused("generate", tmp_path, "--chat", "--prompt", "a", code=3)
    assert "jinja2" in errors and "[inference]'" in errors
