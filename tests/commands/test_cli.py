"""The command as a user calls it."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import click
import numpy as np
import pytest
from expectations import suite
from invoke import invoke, refused
from messages import mentions

from reference_numpy import TransformerConfig, parameters, preset
from reference_numpy.presets import PRESETS
from rosettaformer.cli import cli
from rosettaformer.commands import doctor
from rosettaformer.commands import explain as explain_command
from rosettaformer.commands.declared import parameter_lines
from rosettaformer.commands.list import KINDS
from rosettaformer.common import backends
from rosettaformer.files.checkpoints import container
from rosettaformer.files.checkpoints.canonical import save
from rosettaformer.files.checkpoints.hugging_face import new
from rosettaformer.judge.case import DTYPES, SUITE_RELEASE
from rosettaformer.judge.catalogue import all_defects
from rosettaformer.judge.expectation import components
from rosettaformer.judge.expectation.components import COMPONENTS
from rosettaformer.judge.status import Status
from rosettaformer.judge.suite.build import parameters_of
from rosettaformer.judge.suite.case_files import answer_path

NORM = ("--component", "layer_norm", "--dtype", "float64")


def test_help_names_every_command_and_the_exit_codes() -> None:
    result = invoke("--help")
    assert result.code == 0
    for word in ("doctor", "check", "convert", "inspect", "0 conforms, 1 differs, 2 "):
        assert word in " ".join(result.out.split())


def options_of(command: click.Command) -> int:
    """Returns the number of options of a command and its subcommands."""
    context = click.Context(command)
    own = [command.get_command(context, name) for name in command.list_commands(context)] if isinstance(command, click.Group) else []
    return sum(map(options_of, own)) + sum(isinstance(one, click.Option) for one in command.params)


def test_there_are_at_most_200_options() -> None:
    assert 100 < options_of(cli) <= 200


def test_the_help_of_train_has_sections_and_the_default_of_every_option() -> None:
    text = invoke("train", "--help").out
    sections = re.findall(r"^(\w.*):$", text, re.MULTILINE)
    assert len(sections) == 4 and sections[0] == "Run"
    options = {part.split()[0]: " ".join(part.split()) for part in re.split(r"\n  (?=-)", text)[1:]}
    assert [name for name, words in options.items() if "[default: " not in words] == [
        "--task",
        "--out",
        "--resume",
        "--data",
        "--recipe",
        "-h,",
    ]
    assert "[default: 100000; number-words: 800; copy, reverse: 3000]" in options["--steps"]
    assert "from_language=es" in options["--data"] and "held_out=500" in options["--data"]


def test_check_prints_the_matrix_and_writes_json(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    result = invoke("check", "torch", "--component", "layer_norm,softmax", "--dtype", "float32", "--json", file)
    assert result.code == 0, result
    assert "layer_norm" in result.out
    assert "PASSED" in result.out
    report = json.loads(file.read_text())
    empty = [row["case"] for row in report["results"] if row["status"] == "empty"]
    assert empty == ["layer_norm/batch_0"]
    assert report["compared"] == report["passed"] == len(report["results"]) - len(empty) > 10
    assert report["failed"] == 0
    assert {row["component"] for row in report["results"]} == {"layer_norm", "softmax"}
    assert all(0 <= row["ratio"] <= 8 and row["noise"] >= 0 for row in report["results"] if row["case"] not in empty)
    assert list(tmp_path.iterdir()) == [file]


def test_a_wrong_port_exits_1_and_every_report_names_what_is_wrong(tmp_path: Path) -> None:
    names = {"--json": "results.json", "--junit": "results.xml", "--html": "report.html"}
    options = [text for option, name in names.items() for text in (option, str(tmp_path / name))]
    result = invoke("check", "wrong_port", "--dtype", "float64", *options)
    assert result.code == 1, result.err
    for words in (
        "FAIL",
        "differs layer_norm/large_mean float64",
        "not covered",
        f"(suite release {SUITE_RELEASE}) in ",
    ):
        assert mentions(result.out, words)
    report = json.loads((tmp_path / "results.json").read_text())
    assert (report["suite"], report["verdict"]) == (SUITE_RELEASE, "differs")
    failures = [row for row in report["results"] if row["status"] == "differs"]
    assert all(row["heat"] and row["allowed"] < row["error"] and row["worst"] for row in failures)
    junit = ElementTree.parse(tmp_path / "results.xml").getroot()
    assert int(junit.attrib["failures"]) == report["failed"] == len(failures) > 0
    html = (tmp_path / "report.html").read_text()
    assert "<title>rosettaformer: differs</title>" in html and "nothing to explain" not in html
    assert re.search("epsilon=outside", html)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names.values())


def test_k_chooses_cases_and_dtypes() -> None:
    result = invoke("check", "wrong_port", "-k", "layer_norm/large_mean-float16", "--json", "-")
    assert {(row["case"], row["dtype"]) for row in json.loads(result.out)["results"]} == {("layer_norm/large_mean", "float16")}
    assert len(result.err.splitlines()) == 2


@pytest.mark.conformance
def test_x_stops_at_the_first_failure_that_is_not_declared(tmp_path: Path) -> None:
    def statuses(*options: object) -> list[str]:
        found = invoke("check", "wrong_port", *NORM, "-x", "--json", "-", *options)
        return [row["status"] for row in json.loads(found.out)["results"] if row["status"] != "not covered"]

    assert statuses() == ["differs", *["not run"] * 9]
    file = tmp_path / "deviations.toml"
    entry = '[[deviation]]\ncase = "layer_norm/{}"\nport = "wrong_port"\nreason = "known"\nlink = "https://example.org/1"\n'
    file.write_text(entry.format("small_variance"))
    found = statuses("--deviations", file)
    assert found[:2] == ["deviation", "differs"] or found[:3] == ["deviation", "pass", "differs"]
    assert found[-1] == "not run"
    text = invoke("check", "wrong_port", "--component", "layer_norm", "-x").out
    assert "wrong_port" in text
    assert text.splitlines()[-1] == "next: rosettaformer diagnose wrong_port"


# the kinds of lists, and values in their lines
LISTED = {
    "components": ["layer_norm(parameters, x_btd, epsilon", "combine_masks(mask_bhts, other_bhts)"],
    "-k 'softmax and not vjp'": ["softmax(logits, mask)", "softmax_vjp"],
    "-k layer_norm": ["(model_width) … norm_offset", "norm_one_plus_scale as one_plus_scale"],
    "-k 'multi_head_attention and not vjp'": [
        "query.bias … h k … (heads, key_size) … query_key_value_bias",
        "query_btd … memory_bsd … mask_bhts … causal … position_bt",
        "model_width, heads … attention_dropout_rate as dropout_rate",
    ],
    "-k 'classify and not vjp'": [
        'layers.0 … (max_positions + position_offset, model_width) … "learned"',
        "classifier.kernel … r c … (model_width, classes)",
    ],
    "-k 'token_decoder and not vjp'": [
        "cross_attention.query.bias … query_key_value_bias … encoder_layers",
        "logits.kernel … d v … (model_width, target_vocabulary) … tie_logits",
    ],
    "-k beam_search": ["source_mask_bs", "max_new_tokens, min_new_tokens=0", "start_id … end_id"],
    "config -k 'norm_placement or epsilon'": ["norm_placement … post, pre, sandwich, after", "epsilon"],
    "cases -k layer_norm/plain-float16": ["layer_norm/plain … float16"],
    "defects -k 'NRM1 and not (NRM10 or NRM11)'": ["NRM1 … layer_norm"],
    "ports": ["torch … impl_torch.port … installed"],
}


@pytest.mark.parametrize("line", LISTED)
def test_list(line: str) -> None:
    result = invoke("list", *shlex.split(line))
    assert (result.code, [values for values in LISTED[line] if not mentions(result.out, values)]) == (0, [])


def test_list_by_itself_is_an_overview_that_names_every_list() -> None:
    """And every family, component and dtype, once."""
    text = invoke("list").out
    for names in (new.names(), [name for name in COMPONENTS if not name.endswith("_vjp")], DTYPES):
        assert f"\n    {', '.join(names)}\n" in text.replace(",\n    ", ", ")
    assert re.findall(r"^    rosettaformer list (\S+)  ", text, re.MULTILINE) == [*KINDS]
    assert "    rosettaformer list -k COMPONENT  " in text
    assert len(text.splitlines()) < 40


def test_the_help_of_what_takes_a_family_lists_them_and_imports_them_for_that_alone() -> None:
    *others, last = new.names()
    for command in ("check", "diagnose", "new-checkpoint"):
        text = " ".join(invoke(command, "--help").out.split())
        assert f"FAMILY is {', '.join(others)} or {last}." in re.sub(r"(\w)- (\w)", r"\1-\2", text)  # lines break at hyphens
    script = "import sys, rosettaformer.commands.check, rosettaformer.commands.diagnose; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert "rosettaformer.commands.options" in found and "rosettaformer.files.checkpoints.hugging_face" not in found


def test_list_says_of_every_field_what_it_is() -> None:
    lines, groups = invoke("list", "config").out.splitlines(), TransformerConfig.groups()
    assert [line.split()[0] for line in lines] == [name for group, names in groups.items() for name in (group, *names)]
    assert all(len(re.split("  +", line.strip())) == 3 for line in lines if line not in groups)
    assert [line.split()[0] for line in invoke("list", "config", "-k", "dropout and not attention").out.splitlines()] == [
        "dropout", "dropout_rate", "hidden_dropout_rate", "classifier_dropout_rate",
    ]  # fmt: skip


def test_list_names_every_parameter_of_every_model() -> None:
    """Only the first layer of a stack."""
    for name, config in PRESETS.items():
        for component in ("transformer", "classify") if not config.decoder_layers else ("transformer",):
            names = {line.split()[0] for line in parameter_lines(component)}
            wanted = {one for one in parameters.axes(config) if not re.search(r"layers\.[1-9]", one)}
            assert wanted <= names, (name, wanted - names)
    assert [line.split()[0] for line in parameter_lines("self_attention_sublayer")][-1] == "self_attention_output_norm.offset"
    assert [*parameter_lines("softmax")] == []


def test_list_names_every_component_and_defect() -> None:
    for kind, names in (("components", COMPONENTS), ("defects", all_defects())):
        text = invoke("list", kind).out
        assert {re.split(r"\W", line)[0] for line in text.splitlines() if not line.startswith((" ", "axes"))} == set(names)


@pytest.mark.conformance
def test_results_of_which_some_are_missing_do_not_conform_unless_it_is_allowed(tmp_path: Path) -> None:
    case = next(case for case in suite() if case.id == "layer_norm/plain").at("float32")
    path = tmp_path / answer_path(case)
    path.parent.mkdir(parents=True)
    container.write(path, components.answer(case), {})
    wanted = {Status.PASS: 1, Status.NOT_GIVEN: sum(len(case.dtypes) for case in suite() if case.component == "layer_norm") - 1}
    for option, code in (((), 1), (("--allow-incomplete",), 0)):
        found = invoke("check", "--results", tmp_path, "--component", "layer_norm", *option, "--json", "-")
        assert (found.code, Counter(row["status"] for row in json.loads(found.out)["results"])) == (code, wanted)


def test_zeros_and_what_overflows_are_not_comparable_where_the_dtype_overflows(tmp_path: Path) -> None:
    config = preset("tiny")
    values = parameters_of(config, "transformer", np.random.default_rng(0))
    large = {name: np.float32(value) * (1000 if name.endswith(("kernel", "table")) else 1) for name, value in values.items()}
    file, port = tmp_path / "large.safetensors", tmp_path / "zeros.py"
    save(file, config, large)
    for fill in ("0", "np.nan"):
        text = f"np.full((*case.inputs['target'].shape, case.config.target_vocabulary), {fill}, case.dtype)"
        port.write_text(f"import numpy as np\n\ndef transformer(case):\n    return {text}\n")
        result = invoke("check", port, "--checkpoint", file, "--dtype", "float16")
        assert result.code == 1
        assert mentions(result.out, "not comparable (2) … output … float16")
        assert "FAILED: nothing was compared (2 skipped" in result.out
        assert "Warning" not in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("no_such_file.py",), "no_such_file.py"),
        (("torch", "--results", "."), "--results"),
        (("--results", ".", "--mode", "eager"), "--results … --mode"),
        (("--deviations", "no_such_file.toml"), "no_such_file.toml"),
        (("--html", "no_such_folder/report.html"), "the folder no_such_folder does not exist"),
        (("--checkpoint", "no_such_file.safetensors"), "no_such_file.safetensors"),
        (("--limit", "-1"), "--limit"),
    ],
)
def test_wrong_usage_is_one_message_and_exit_2(arguments: tuple[str, ...], message: str) -> None:
    assert mentions(refused("check", *arguments), message)


@pytest.mark.conformance
def test_doctor_says_what_is_there() -> None:
    result = invoke("doctor", "--json")
    assert result.code == 0
    ports = json.loads(result.out)["ports"]
    assert list(ports) == ["torch", "tf", "jax"]
    for port in ports.values():
        assert port["state"] == "ready"
        assert "cpu" in port["about"]["devices"]
        assert port["about"]["precision"]
        assert set(port["about"]["modes"]) == {"eager", "compiled"}


@pytest.mark.conformance
def test_a_missing_framework_is_reported_as_missing_with_the_install_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("torch", "tensorflow", "jax"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(f"raise ModuleNotFoundError('not installed', name={package!r})")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])  # the path that processes of ports have
    found = json.loads(invoke("doctor", "--json").out)["ports"]
    assert {port["state"] for port in found.values()} == {"missing"}
    assert "[jax]'" in found["jax"]["about"]
    assert invoke("check", "torch").code == 3


def test_doctor_shows_a_table_and_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    about = {"version": {"torch": "2"}, "devices": ["cpu"], "precision": "highest", "modes": ["eager"]}
    monkeypatch.setattr(doctor, "describe_ports", lambda names: {"torch": ("ready", about), "jax": ("missing", "pip install x")})
    result = invoke("doctor")
    assert result.code == 0
    assert "torch 2" in result.out and "highest" in result.out
    assert result.out.splitlines()[-1] == "jax is missing: pip install x"


def _ended(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> tuple[int, str]:
    """Returns the exit code and the messages of a command that raises."""

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(explain_command.explain, "callback", fail)
    found = invoke("explain", "ATT1")
    return found.code, found.err


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ValueError("wrong"), 2, "Error: wrong\n"),
        (ValueError("a\x1b[31mb\x00c\ud800\nd"), 2, "Error: ab\\x00c\\ud800\nd\n"),
        (ValueError("x" * 50_000), 2, "Error: " + "x" * 10_000 + " ... (40000 more characters)\n"),
        (FileNotFoundError(2, "No such file", "a"), 2, "Error: [Errno 2] No such file: 'a'\n"),
        (MemoryError(), 2, "memory"),
        (MemoryError("Unable to allocate 40 GiB"), 2, "Error: Unable to allocate 40 GiB\n"),
        (KeyboardInterrupt(), 130, "\n"),
    ],
)
def test_what_a_user_or_the_system_does_is_one_message(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str
) -> None:
    ended, said = _ended(monkeypatch, error)
    assert ended == code and mentions(said, message)


@pytest.mark.parametrize("error", [TypeError("a mistake of ours"), RecursionError(), OverflowError(), KeyError("a")])
def test_a_mistake_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    with pytest.raises(type(error)):
        _ended(monkeypatch, error)


@pytest.mark.parametrize("arguments", [("--help",), ("explain", "ATT1")])
def test_a_reader_that_goes_is_no_difference(arguments: tuple[str, ...]) -> None:
    line = [sys.executable, "-m", "rosettaformer", *arguments]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stderr
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_what_tensorflow_says_when_it_is_imported_is_not_news(capfd: pytest.CaptureFixture[str]) -> None:
    """Other output during the import is kept."""
    with backends.without_greeting():
        os.write(2, b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n")
        os.write(2, b"I0000 00:00:1795521451.019412   31224 port.cc:153] oneDNN custom operations are on. You may see\nno such file\n")
    assert capfd.readouterr().err == "no such file\n"


@pytest.mark.conformance
def test_a_backend_of_tensorflow_says_nothing() -> None:
    pytest.importorskip("tensorflow")
    code = "from rosettaformer.common.backends import imported; imported('tf', 'impl_tf')"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stderr == ""
