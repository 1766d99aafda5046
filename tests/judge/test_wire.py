"""Messages between processes: plain data survive the round trip, and everything else is rejected."""

import contextlib
import enum
import io
import json
import math
import random
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rosettaformer.common.processes import printable, wire, words
from rosettaformer.judge.ports import messages
from rosettaformer.judge.suite import all_cases


class Act(str, enum.Enum):  # noqa: UP042 - as many a port has it
    RELU = "relu"


class Mute(Exception):
    def __str__(self) -> str:
        raise self


def _bytes(message: Any) -> bytes:
    return b"".join(bytes(part) for part in wire.pack(message)[0])


def _returned(data: bytes, most: int | None = None) -> Any:
    stream = io.BytesIO(data)

    def read(count: int) -> bytearray:
        data = bytearray(stream.read(count))
        if len(data) < count:
            raise EOFError
        return data

    return wire.receive(read, most)[0]


def _header(text: str) -> bytes:
    return b"rsf1" + len(text).to_bytes(4, "little") + text.encode()


@pytest.mark.parametrize(
    "value",
    [None, True, 3, -(1 << 63), (1 << 64) - 1, 0.1, math.inf, "\ud800\x1b\n", [], (), {}, [1, (2, None)], {"a": {3: [0.5]}, None: "b"}],
)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    found = _returned(_bytes(value))
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("name", wire.DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 4), (2, 3)])
def test_arrays_come_back_bit_for_bit(name: str, shape: tuple[int, ...]) -> None:
    array = np.arange(math.prod(shape)).reshape(shape).astype(wire.DTYPES[name])
    for value in (array, array.T, array[::-1] if shape else array):
        found = _returned(_bytes({"x": value}))["x"]
        assert (found.dtype, found.shape, found.tobytes()) == (value.dtype, value.shape, value.tobytes())
        assert found.flags.writeable


def test_derived_classes_are_reduced_to_what_they_derive_from() -> None:
    class Own(np.ndarray):
        def __array_ufunc__(self, *arguments: Any, **named: Any) -> Any:
            raise AssertionError

    given = [Act.RELU, np.float32(0.5), np.int64(3), np.bool_(True), enum.IntEnum("E", "a").a, np.ones(2).view(Own)]
    found = _returned(_bytes(given))
    assert [type(value) for value in found] == [str, float, int, bool, int, np.ndarray]
    assert found[:5] == ["relu", 0.5, 3, True, 1]


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (object(), "object"), (b"x", "bytes"), (1 << 64, "int"), (np.zeros(2, ">f8"), "an array of >f8"),
        (np.array([None]), "an array of object"), (np.zeros(1, ml_dtypes.float8_e4m3), "float8_e4m3"),
    ],
)  # fmt: skip
def test_what_is_not_plain_is_not_sent(value: Any, what: str) -> None:
    with pytest.raises(wire.Malformed, match="64-bit") as caught:
        wire.pack([value])
    assert what in str(caught.value)


def test_a_message_is_limited_before_anything_is_copied() -> None:
    huge = np.broadcast_to(np.float64(0), (10**6, 10**6))
    with pytest.raises(wire.Malformed, match="at most 1073741824 bytes; they have 8000000000000"):
        wire.pack(huge, wire.answer_limit(0))
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(wire.Malformed, match="nested at most 32 deep"):
        wire.pack(endless)
    with pytest.raises(wire.Malformed, match="at most 16777216 bytes"):
        wire.pack("x" * (17 << 20))
    with pytest.raises(wire.Malformed, match="at most 64 bytes; they have 72"):
        _returned(_bytes(np.zeros(9)), 64)


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x05K\x01.....", b"rsf1\xff\xff\xff\xff", _header("{"), _header("[]"), _header('{"value": 1}'),
        _header("[" * 10**5), _header('{"value": ' + "9" * 10**4 + ', "arrays": []}'),
        _header(f'{{"value": {1 << 64}, "arrays": []}}'), _header('{"value": {}, "arrays": []}'),
        _header('{"value": ["object", 0], "arrays": []}'), _header('{"value": ["array", 0], "arrays": []}'),
        _header('{"value": ["map", [[["list", []], 1]]], "arrays": []}'),
        *(_header(f'{{"value": 1, "arrays": [{array}]}}') for array in (
            '["object", [1]]', '["bool", [-1]]', '["float64", [0.5]]', '["float64", [true]]', '["bool", 3]',
            '["float64", [0, 9223372036854775807]]', f'["float64", {[1] * 65}]')),
    ],
)  # fmt: skip
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(wire.Malformed):
        _returned(data, 1 << 20)


def test_every_case_is_asked_as_it_is_and_damaged_messages_are_refused() -> None:
    good = _bytes(("outputs", {"output": np.arange(6.0).reshape(2, 3), "weights": np.ones(3, "float16")}))
    rng = random.Random(0)
    for _ in range(5000):
        data = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            place = rng.randrange(len(data))
            data[place : place + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
        with contextlib.suppress(wire.Malformed, EOFError):
            _returned(bytes(data), 1 << 20)
    for case in all_cases(grad=True)[::7]:
        (found,) = messages.asked(_returned(_bytes(messages.plain([case]))))
        assert json.dumps(found.config.to_dict()) == json.dumps(case.config.to_dict())
        assert (found.id, found.dtypes, found.twice, found.inputs.keys()) == (case.id, case.dtypes, case.twice, case.inputs.keys())
        for name, value in case.inputs.items():
            assert type(found.inputs[name]) is type(value)
            np.testing.assert_array_equal(found.inputs[name], value)
        assert all(np.array_equal(found.parameters[name], value) for name, value in case.parameters.items())


ABOUT = {"framework": "", "modes": ("eager",), "config": {"heads": 3}, "dtypes": ("float32",), "components": ("softmax",)}
MORE = {"devices": ["cpu"], "version": {"a": "1"}, "precision": "x"}
CALL = {"inputs": [np.ones(1)], "output": np.ones(1), "gradients": {"inputs": {0: np.ones(1)}, "parameters": {"a": np.ones(1)}}}
FORCE = messages.Force("a", [])


@pytest.mark.parametrize(
    ("method", "answer", "good"),
    [
        ("start", ("ready", ABOUT | MORE), True), ("start", ("missing", "why"), True),
        ("start", ("ready", {}), False), ("start", ("ready", None), False), ("start", ("outputs", {}), False),
        ("start", ("missing", None), False), ("start", ("skipped", "why"), False),
        *(("start", ("ready", ABOUT | wrong), False) for wrong in (
            {"modes": ()}, {"modes": (1,)}, {"config": {3: 3}}, {"config": {"heads": [{3}]}}, {"devices": 3},
            {"dtypes": ("float31",)}, {"components": ("soft",)}, {"other": 1}, {"version": {"a": 1}},
            {"framework": None})),
        ("answer", ("outputs", {"output": np.ones(1)}), True), ("answer", ("hang", "why"), True),
        *(("answer", (kind, "why"), True) for kind in ("error", "not covered", "skipped", "differs")),
        *(("answer", (kind, "why"), False) for kind in ("pass", "deviation", "missing", "ready", "not started", "")),
        ("answer", ("error", {"a": 1}), False), ("answer", ("outputs", np.ones(1)), False),
        ("answer", ("outputs", {"output": 1.0}), False), ("answer", ("outputs", {3: np.ones(1)}), False),
        ("describe", ("outputs", ABOUT), True), ("describe", ("outputs", {}), False),
        ("trace", ("error", "why"), True), ("trace", ("differs", "why"), False),
        *(("trace", ("outputs", [{"": CALL}, second]), True) for second in ({"a": CALL}, {})),
        *(("trace", ("outputs", runs), False) for runs in ([{"": CALL}], [{}, {"a": CALL}], {"": CALL})),
        ("trace", ("outputs", [{"": {}}, {}]), False),
        *(("trace", ("outputs", [{"": CALL | wrong}, {}]), False) for wrong in (
            {"output": 3}, {"error": 3}, {"gradients": {}}, {"other": "a"})),
    ],
)  # fmt: skip
def test_only_what_is_documented_is_an_answer(method: str, answer: tuple[str, Any], good: bool) -> None:
    assert (messages.problem(method, (None, [None, FORCE]), answer) == "") == good


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ü 日本", "plain ü 日本"),
        ("two\r\n  lines\tand a tab", "two lines and a tab"),
        ("\x1b]8;;https://example.org\x1b\\link\x1b]8;;\x07", "link"),
        ("\x9b2J\x07\x00\x7f", "\\x9b2J\\x07\\x00\\x7f"),
        ("\ud800", "\\ud800"),
        ("\u202eesrever\u2066\u200b", "\\u202eesrever\\u2066\\u200b"),
    ],
)
def test_text_is_shown_and_not_obeyed(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_long_text_is_cut_and_says_so_and_an_error_without_words_too() -> None:
    assert printable("x" * 50_000_000).endswith("x ... (49996000 more characters)")
    assert len(printable("\x1b" * 50_000_000)) < 20_000
    assert words(ValueError("y" * 10**7)).endswith("y ... (9996500 more characters)")
    assert words(Mute()).startswith("Mute: ")
    assert words(KeyError("a")) == "KeyError: 'a'"
