"""Shell completion: closed lists are completed, and the help of `check` groups its options."""

import re

import pytest
from click.shell_completion import ShellComplete
from invoke import invoke

from rosettaformer.cli import COMMANDS, cli


def completed(*words: str) -> list[str]:
    """Returns the shell's completions of the last word."""
    found = ShellComplete(cli, {}, "rosettaformer", "_ROSETTAFORMER_COMPLETE").get_completions([*words[:-1]], words[-1])
    return [item.value for item in found]


@pytest.mark.parametrize(
    ("words", "some"),
    [
        (("",), COMMANDS),
        (("check", ""), {"torch", "tf", "jax"}),
        (("check", "--like", "q"), {"qwen2", "qwen3"}),
        (("check", "--component", "multi_head"), {"multi_head_attention", "multi_head_attention_vjp"}),
        (("check", "--component", "softmax,layer"), {"softmax,layer_norm"}),
        (("check", "--dtype", "float32,b"), {"float32,bfloat16"}),
        (("check", "--mode", "e"), {"eager"}),
        (("check", "-k", "layer_norm/p"), {"layer_norm/plain"}),
        (("explain", "NRM"), {"NRM1", "NRM2"}),
        (("list", "c"), {"cases", "components", "config"}),
        (("new-checkpoint", "gemma"), {"gemma", "gemma2", "gemma3_text"}),
        (("export", "--to", "o"), {"onnx"}),
    ],
)
def test_closed_lists_are_completed(words: tuple[str, ...], some: set[str]) -> None:
    found = completed(*words)
    assert {*some} <= {*found} and all(word.startswith(words[-1]) for word in found)


def test_a_port_and_a_folder_may_be_files_too() -> None:
    for words, kind in ((("check", "my"), "file"), (("check", "--like", "my"), "dir")):
        found = ShellComplete(cli, {}, "rosettaformer", "_X").get_completions([*words[:-1]], words[-1])
        assert [item.type for item in found] == [kind]


def test_the_options_of_check_are_in_groups_the_common_ones_first() -> None:
    help_ = invoke("check", "--help").out
    titles = re.findall(r"^(\w.*):$", help_, re.MULTILINE)
    assert len(titles) >= 5 and "Options" not in titles
    places = [
        help_.index(f"\n  {option} ") for option in ("--like", "--checkpoint", "--component", "--quick", "--limit", "--html", "--min-cases")
    ]
    assert places == sorted(places)
