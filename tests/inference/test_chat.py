"""Conversations: published chat templates turn them into ids, and `generate --chat` answers them."""

import json
from pathlib import Path
from typing import Any

import pytest
from decoder_tokenizers import OF_FAMILY, STYLES, decoder, saved_tokenizer
from invoke import invoke, refused, succeeded
from kinds import conformance
from model_folders import NUMPY, edit

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from rosettaformer.use.inference import tokenizer as module  # noqa: E402
from rosettaformer.use.inference.tokenizer import Tokenizer, messages_of  # noqa: E402

SYSTEM, USER, MODEL = "You are <b>brief</b> & kind.", " What's the née fox?\n", "The fox\n jumps."
ONE = [{"role": "user", "content": USER}]
SEVERAL = [*ONE, {"role": "assistant", "content": MODEL}, {"role": "user", "content": "And 😀?"}]
OF_SYSTEM = [{"role": "system", "content": SYSTEM}, *ONE]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    saved_tokenizer(tmp_path, "llama")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return tmp_path


def opened(folder: Path) -> Tokenizer:
    return Tokenizer(folder, None, json.loads((folder / "config.json").read_text()))


@pytest.mark.parametrize("style", STYLES)
def test_a_conversation_becomes_ids_with_one_beginning(tmp_path: Path, style: str) -> None:
    """With the templates of Llama 3, Qwen, Gemma, Phi-3 and Mistral; Gemma's takes no system message."""
    saved_tokenizer(tmp_path, style)
    family = next(family for family, named in OF_FAMILY.items() if named == style)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    tokenizer = opened(tmp_path)
    ids = tokenizer.conversation(SEVERAL)
    assert MODEL in tokenizer.text(ids) and "😀" in tokenizer.text(ids)
    assert not STYLES[style].first or ids.count(tokenizer.id_of("bos_token")) == 1
    if style == "gemma":
        with pytest.raises(ValueError, match="System role not supported"):
            tokenizer.conversation(OF_SYSTEM)


@pytest.mark.parametrize(
    "template",
    ["{{ messages.append(1) }}", "{{ ''.__class__.__mro__ }}", "{% set ns = namespace() %}{% set ns._b = 1 %}", "{{ undefined_name.x }}",
     "{{ 1 + 'a' }}", "{{ raise_exception('no') }}", "{% if %}", 3, [{"name": "a"}], [{"name": "a", "template": "b"}]],
)  # fmt: skip
def test_a_template_that_fails_is_one_message(folder: Path, template: Any) -> None:
    edit(folder, "tokenizer_config.json", chat_template=template)
    with pytest.raises(ValueError, match=r"\A[^\n]*\Z"):
        opened(folder).conversation(ONE)


def test_a_file_comes_before_the_entry(folder: Path) -> None:
    edit(folder, "tokenizer_config.json", chat_template="the fox")
    (folder / "chat_template.jinja").write_text("jumps")
    tokenizer = opened(folder)
    assert tokenizer.text(tokenizer.conversation(ONE)) == "jumps"


ENDLESS = {
    "loops": "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% for c in r %}{% endfor %}{% endfor %}{% endfor %}",
    "a power": "{{ 9 ** (9 ** 9) }}",
    "a recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "many blocks": "{% for a in [1] %}" * 300 + "{% endfor %}" * 300,
    "many brackets": "{{ " + "(" * 20000 + "1" + ")" * 20000 + " }}",
}


@pytest.mark.parametrize("name", [name if name in ("loops", "many brackets") else conformance(name) for name in ENDLESS])
def test_a_template_without_an_end_is_one_message_in_time(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    edit(folder, "tokenizer_config.json", chat_template=ENDLESS[name])
    tokenizer = opened(folder)
    monkeypatch.setattr(module, "LIMIT", 1.0)
    with pytest.raises(ValueError, match=r"\A[^\n]*\Z"):
        tokenizer.conversation(ONE)


def test_a_text_is_a_message_of_the_user_or_a_conversation() -> None:
    user = [{"role": "user", "content": "a"}]
    assert messages_of("a") == user
    assert messages_of("a", SYSTEM) == [{"role": "system", "content": SYSTEM}, *user]
    for text in ("[1, 2]", "[]", '[{"a": 1}]', '{"role": "user"}', "[" * 10**5):
        assert messages_of(text) == [{"role": "user", "content": text}]
    assert messages_of(json.dumps(SEVERAL)) == SEVERAL
    assert messages_of(json.dumps(SEVERAL), SYSTEM) == [{"role": "system", "content": SYSTEM}, *SEVERAL]
    with pytest.raises(ValueError, match="--system"):
        messages_of(json.dumps(OF_SYSTEM), SYSTEM)


def answered(folder: Path, model: Any, messages: list[dict[str, Any]], **options: Any) -> tuple[list[int], str]:
    """Returns the ids and the text of transformers' answer."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=False)
    found = model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **options)[0]
    whole, before = (tokenizer.decode(part, skip_special_tokens=True) for part in (found, ids[0]))
    before = before if whole.startswith(before) else before.rstrip("\n")  # its last bytes form no character together with those that follow
    return found[ids.shape[1] :].tolist(), whole.removeprefix(before)


@pytest.mark.parametrize("family", ["llama", *map(conformance, ("qwen3", "gemma2", "phi3", "mistral"))])
def test_generate_answers_a_chat_as_transformers_does(tmp_path: Path, family: str) -> None:
    """A user message and a conversation in one batch; only the answers are printed."""
    model = decoder(tmp_path, family, 3)
    conversation = json.dumps(SEVERAL)
    found = succeeded("generate", tmp_path, *NUMPY, "--chat", "--json", "--max-new-tokens", 9, stdin=f"the quick fox\n{conversation}\n")
    for row, messages in zip(found.rows, (messages_of("the quick fox"), SEVERAL), strict=True):
        assert (row["tokens"], row["text"]) == answered(tmp_path, model, messages, max_new_tokens=9)
    if family == "gemma2":
        words = ("--chat", "--system", SYSTEM, "--prompt", "a")
        assert "System role not supported" in refused("generate", tmp_path, *NUMPY, *words)
    else:
        shown = succeeded("generate", tmp_path, *NUMPY, "--chat", "--system", SYSTEM, "--prompt", "the fox").out
        assert shown == answered(tmp_path, model, messages_of("the fox", SYSTEM), max_new_tokens=20)[1] + "\n"


def test_what_a_chat_needs_is_said(tmp_path: Path) -> None:
    decoder(tmp_path, "llama", 3)
    assert "--system" in refused("generate", tmp_path, *NUMPY, "--system", "a", "--prompt", "a")
    edit(tmp_path, "tokenizer_config.json", chat_template=None)
    assert str(tmp_path) in refused("generate", tmp_path, *NUMPY, "--chat", "--prompt", "a")
    assert invoke("generate", tmp_path, *NUMPY, "--prompt", "a").code == 0
