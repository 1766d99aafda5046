"""For a port whose functions or modules take other arguments, the message says how they are called."""

import dataclasses
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from expectations import all_by_id
from messages import mentions

from rosettaformer.judge.case import Case
from rosettaformer.judge.ports import signature
from rosettaformer.judge.ports.messages import plain
from rosettaformer.judge.ports.port import Port
from rosettaformer.judge.ports.port_server import SideEffects, reply

FUNCTION = "layer_norm(case) … case.inputs … x_btd … case.parameters … scale, offset … case.config"
MODULE = "; layer_norm is called as layer_norm(x_btd=...)"
BUILD = "components … build(config, dtype)"


def layer_norm_case() -> Case:
    return all_by_id()["layer_norm/plain"]


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("def layer_norm(x_btd, scale, offset, epsilon): ...", FUNCTION),
        ("def layer_norm(x): return x - 1", FUNCTION),
        ("def layer_norm(case): return len(1, 2)", ""),
        ("def inner(a): ...\ndef layer_norm(case): return inner(1, 2)", ""),
        ("def layer_norm(case): raise ValueError('takes 1 positional argument')", ""),
    ],
)
def test_functions(source: str, hint: str, tmp_path: Path) -> None:
    file = tmp_path / f"port_{abs(hash(source))}.py"
    file.write_text(source)
    kind, message = reply(Port(str(file)), SideEffects(), "answer", *plain([layer_norm_case()]))
    assert kind in ("error", "differs")
    assert mentions(message, hint) if hint else "is called as" not in message


def raised(call: Any) -> Exception:
    with pytest.raises(Exception) as caught:
        call()
    return caught.value


@pytest.mark.conformance
def test_modules() -> None:
    module = SimpleNamespace(framework="torch", __file__="port.py")

    def _built(build: Any) -> Any:
        return build(1, 2)

    unexpected = raised(lambda: (lambda x: x)(x_btd=1))
    assert signature.hint(unexpected, module, layer_norm_case()) == MODULE
    assert mentions(signature.hint(raised(lambda: _built(lambda config: None)), module, layer_norm_case()), BUILD)
    assert mentions(signature.hint(raised(lambda: _built(7)), module, layer_norm_case()), BUILD)
    assert signature.hint(ValueError("takes 1 positional argument"), module, layer_norm_case()) == ""
    own = SimpleNamespace(framework="torch", __file__=__file__)
    assert signature.hint(unexpected, own, layer_norm_case()) == ""  # a call within the port's own file


def test_a_torch_module_with_another_argument(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    file = tmp_path / "port_of_a_module.py"
    file.write_text(
        "import torch\nclass Norm(torch.nn.Module):\n    def forward(self, x): return x\n"
        "framework = 'torch'\ncomponents = {'softmax': lambda config, dtype: Norm()}\n"
    )
    case = all_by_id()["softmax/plain"]
    kind, message = reply(Port(str(file)), SideEffects(), "answer", *plain([case]))
    assert kind == "error"
    assert "unexpected keyword argument" in message
    assert message.endswith(f"; softmax is called as softmax({', '.join(f'{name}=...' for name in case.inputs)})")


@pytest.mark.parametrize(
    ("source", "got"),
    [
        ("def build(folder): ...", "build"),
        ("weights = 3\n_load = print", "no function"),
        ("def a(): ...\ndef laod(folder): ...\ndef layer_nrom(case): ...", "laod (nearest: load), layer_nrom (nearest: layer_norm), a"),
    ],
)
def test_a_file_that_defines_nothing_of_a_port(source: str, got: str) -> None:
    module = ModuleType("no_port")
    exec(source, module.__dict__)
    assert mentions(signature.nothing(module), f"load(folder) … --like … `rosettaformer list components` … `framework` … {got}")


def test_what_load_returns_is_not_called_with_a_case() -> None:
    error = TypeError("takes 0 positional arguments but 1 was given")
    of_model = dataclasses.replace(layer_norm_case(), folder="anywhere")
    assert "case" not in signature.hint(error, SimpleNamespace(load=print), of_model)
    assert signature.hint(TypeError("a number is required"), SimpleNamespace(load=print), of_model) == ""
    assert signature.hint(error, SimpleNamespace(), of_model) == signature.hint(error, SimpleNamespace(load=print), layer_norm_case())
