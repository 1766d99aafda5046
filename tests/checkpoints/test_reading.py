"""Text files of arbitrary origin: read completely within bounds, or rejected with the file's name."""

import os
from pathlib import Path

import pytest
from messages import mentions

from rosettaformer.common.reading import LARGEST, parse_json, parse_settings, read_bytes, read_json, read_text, read_toml

JSON = {
    "deep": (b"[" * 200_000, "nested"),
    "twice": (b'{"a": {"b": 1, "c": 2, "b": 3}}', "'b'"),
    "digits": (b"1" + b"0" * 5000, "400 … 5001"),
    "empty": (b"", "must be JSON"),
    "mark": (b"\xef\xbb\xbf{}", "must be JSON"),
    "bytes": (b'{"a": "\xff"}', "must be UTF-8; got the byte 0xff at place 8"),
    "long": (b" " * (LARGEST + 1), "most"),
    "cut": (b'{"a": 1', "must be JSON"),
}


@pytest.mark.parametrize("name", JSON)
def test_what_is_no_json_is_refused_with_its_name(tmp_path: Path, name: str) -> None:
    content, message = JSON[name]
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(ValueError) as caught:
        read_json(path)
    assert str(path) in str(caught.value) and mentions(str(caught.value), message)


def test_json_is_read() -> None:
    assert parse_json('{"a": [1, -2.5, true, null, "\\ud83d\\ude00"], "b": {}}') == {"a": [1, -2.5, True, None, "😀"], "b": {}}
    assert parse_json("1" + "0" * 400) == 10**400


@pytest.mark.parametrize("content", [b"a = " + b"[" * 200_000, b"a = 1\na = 2", b"a = '\xff'", b"a", b"a = 1" + b"0" * 5000])
def test_what_is_no_toml_is_refused_with_its_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=str(path)):
        read_toml(path)


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for read in (read_bytes, read_text, read_json, read_toml):
        with pytest.raises(ValueError, match="pipe is not"):
            read(tmp_path / "pipe")
        with pytest.raises(ValueError, match="not a file"):
            read(tmp_path)
        with pytest.raises(ValueError, match="does not exist"):
            read(tmp_path / "none")


def test_a_setting_that_is_nested_deeply_is_a_name() -> None:
    assert parse_settings(["activation=" + "[" * 50_000]) == {"activation": "[" * 50_000}
