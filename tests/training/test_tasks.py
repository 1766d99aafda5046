"""Tasks: their examples, what they hold out, and rejected input."""

from pathlib import Path
from typing import Any

import pytest
from messages import naming

from rosettaformer.use.training.tasks import Data, create


def sources(pairs: Any) -> set[str]:
    return {source for source, _ in pairs}


def assert_disjoint(data: Data, epochs: int = 1) -> None:
    train = set().union(*(sources(data.epoch(number)) for number in range(epochs)))
    held_out = [sources(data.validation), sources(data.test)]
    assert not train & held_out[0] and not train & held_out[1] and not held_out[0] & held_out[1]
    assert all(held_out) and train


# number-words


def test_number_words_are_exact_and_held_out_numbers_are_never_trained_on() -> None:
    pytest.importorskip("num2words")
    data = create("number-words", {"limit": 999, "held_out": 100}).data()
    assert_disjoint(data)
    pairs = dict([*data.epoch(0), *data.validation, *data.test])
    assert len(pairs) == 1000
    assert pairs["doscientos veintidós"] == "two hundred and twenty-two"
    assert pairs["cero"] == "zero"
    assert data.digest() == create("number-words", {"limit": 999, "held_out": 100}).data().digest()
    assert data.digest() != create("number-words", {"limit": 999, "held_out": 100, "seed": 1}).data().digest()
    back = create("number-words", {"limit": 999, "held_out": 100, "from_language": "en", "to_language": "de"}).data()
    assert dict([*back.epoch(0), *back.validation, *back.test])["twenty-one"] == "einundzwanzig"


# copy, reverse


@pytest.mark.parametrize(("name", "answer"), [("copy", "abc"), ("reverse", "cba")])
@pytest.mark.parametrize("fresh", [False, True])
def test_strings(name: str, answer: str, fresh: bool) -> None:
    task = create(name, {"size": 200, "held_out": 20, "length": 4, "fresh": fresh})
    data = task.data()
    assert_disjoint(data, epochs=5)
    assert len(data.epoch(0)) == 200 and len(sources(data.epoch(0))) == 200
    assert all(target == (source if name == "copy" else source[::-1]) for source, target in data.epoch(3))
    assert {len(source) for source in sources(data.epoch(0))} == {1, 2, 3, 4}
    assert (sources(data.epoch(0)) == sources(data.epoch(1))) is not fresh
    assert data.epoch(2) == task.data().epoch(2)
    assert task.answer("abc") == answer  # type: ignore[attr-defined]


def test_held_out_strings_are_like_those_of_training() -> None:
    """About the same share of the ten strings of length 1 is held out as of all strings: 40 of 240."""
    held_out = 0
    for seed in range(10):
        data = create("copy", {"alphabet": "abcdefghij", "length": 4, "size": 200, "held_out": 20, "seed": seed}).data()
        held_out += sum(len(source) == 1 for source, _ in [*data.validation, *data.test])
    assert 5 <= held_out <= 30  # 16.7 expected of 100, standard deviation 3.7


# files


def write(folder: Path, name: str, content: str | bytes) -> str:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def files(held_out: int = 1, **given: Any) -> Data:
    return create("files", {"held_out": held_out, **given}).data()


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_aligned_files_and_a_tsv_give_the_same_pairs(tmp_path: Path, end: str) -> None:
    pairs = [(f"fuente {index}", f"source\u2028 {index}") for index in range(9)]
    left, right = (write(tmp_path, f"{side}.txt", "".join(pair[side] + end for pair in pairs)) for side in (0, 1))
    tsv = write(tmp_path, "both.tsv", "\ufeff" + end.join("\t".join(pair) for pair in pairs))
    aligned, tabbed = files(source=left, target=right), files(tsv=tsv)
    assert_disjoint(aligned)
    assert {*aligned.epoch(0), *aligned.validation, *aligned.test} == set(pairs)
    assert aligned.digest() == tabbed.digest()


def test_equal_sources_stay_on_one_side(tmp_path: Path) -> None:
    tsv = write(tmp_path, "both.tsv", "".join(f"s{index % 10}\tt{index}\n" for index in range(100)))
    data = files(3, tsv=tsv)
    assert_disjoint(data)
    assert len(data.epoch(0)) == 40 and len(data.validation) == len(data.test) == 3


DAMAGED = b"a\tb\nno tab\n\tb\na\t \nx\ty\tz\n\xff\xfea\t\nc\xc3\td\ne\x00\tf\ng\tbad \xef\xbf\xbd\nh\ti\nj\tk\n"


def test_every_damaged_line_is_named_and_counted(tmp_path: Path) -> None:
    tsv = write(tmp_path, "bad.tsv", DAMAGED)
    with pytest.raises(ValueError) as error:
        files(tsv=tsv)
    text = str(error.value)
    assert text.startswith("8 damaged lines")
    for number, problem in {
        2: "got 1 fields",
        3: "must not be empty",
        4: "must not be empty",
        5: "got 3 fields",
        6: "must be UTF-8; got the byte 0xff at place 1 (UTF-16?)",
        7: "must be UTF-8; got the byte 0xc3 at place 2",
        8: "must be text; got the character U+0000",
        9: "must be text; got the character U+FFFD",
    }.items():
        assert f"{tsv}, line {number}: " in text and problem in text
    data = files(tsv=tsv, skip_damaged=True)
    (note,) = data.notes
    assert "8 damaged lines" in note and "11" in note
    assert len([*data.epoch(0), *data.validation, *data.test]) == 3


def test_a_long_list_of_problems_is_cut_and_counted(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^25 damaged lines[^$]*line 10: .*\n  and 15 more$"):
        files(tsv=write(tmp_path, "bad.tsv", "x\n" * 25))


def test_files_that_do_not_align(tmp_path: Path) -> None:
    left, right = write(tmp_path, "a", "1\n2\n3\n"), write(tmp_path, "b", "1\n2\n")
    with pytest.raises(ValueError, match=naming("same … 3 … 2 … 3 … /a")):
        files(source=left, target=right, skip_damaged=True)
    bad = write(tmp_path, "c", b"1\n\xe9\n\n")
    with pytest.raises(ValueError, match="2 damaged lines") as error:
        files(source=left, target=bad)
    assert f"{bad}, line 2: must be UTF-8" in str(error.value) and f"{bad}, line 3: must not be empty" in str(error.value)


@pytest.mark.parametrize("content", ["", "a\tb\n", "a\tb\nc\td\n", "a\tb\na\tc\na\td\n"])
def test_too_few_pairs_for_a_validation_set(tmp_path: Path, content: str) -> None:
    with pytest.raises(ValueError, match=naming("validation … set")):
        files(tsv=write(tmp_path, "few.tsv", content))


# all


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("number-words", {"from_language": "spanish"}, "language … 'spanish'"),
        ("number-words", {"limit": -1}, "limit … 0 … -1"),
        ("number-words", {"limit": 10}, "validation … 11"),
        ("copy", {"alphabet": "aab"}, "alphabet … 'aab'"),
        ("copy", {"alphabet": "ab", "length": 5}, "alphabet … length … 22000 … 2"),
        ("copy", {"limit": 3, "from_language": "es"}, "limit … from_language … length"),
        ("files", {}, "source … target … tsv … none"),
        ("files", {"source": "a", "target": "b", "tsv": "c"}, "got source, target, tsv"),
        ("files", {"tsv": "nowhere.tsv"}, "nowhere.tsv does not exist"),
        ("files", {"tsv": "."}, ". is not a file"),
        ("translate", {}, "task must be one of number-words, copy, reverse, files; got 'translate'"),
    ],
)
def test_what_a_task_cannot_do_is_refused(name: str, given: dict[str, Any], message: str) -> None:
    if name == "number-words":
        pytest.importorskip("num2words")
    with pytest.raises(ValueError, match=naming(message)):
        create(name, given).data()
