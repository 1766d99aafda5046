"""The output of `rosettaformer generate`."""

import json
from typing import Any

from ..common.outputs import versioned


class Page:
    """Orders the generated texts of a batch: the first unfinished one streams, later ones wait.

    answers: texts per prompt. number: prompts on earlier pages. several: whether there are several
    prompts in all. echo: whether to print the prompt in front of its continuation.
    """

    def __init__(self, tokenizer: Any, answers: int, number: int, as_json: bool, several: bool, echo: bool) -> None:
        self._tokenizer, self._answers, self._number, self._as_json, self._echo = tokenizer, answers, number, as_json, echo
        self._several = several or answers > 1
        self._texts: list[str] = []
        self._turns: list[tuple[int, int]] = []
        self._pieces: dict[tuple[int, int], Any] = {}
        self._told: dict[tuple[int, int], int] = {}
        self._waiting: dict[tuple[int, int], str] = {}
        self._text: dict[tuple[int, int], str] = {}
        self._ended = set[tuple[int, int]]()

    def expect(self, text: str, prompt: list[int], problem: str) -> None:
        """Adds a prompt, or the problem that it has. Call it in order, before `add`."""
        from ..use.inference.tokenizer import Pieces

        place = len(self._texts)
        self._texts.append(text)
        if problem:
            self._turns.append((place, 0))
            self._ended.add((place, 0))
            said = versioned("generate", {"line": self._number + place + 1, "prompt": text, "error": problem})
            row = json.dumps(said, ensure_ascii=False) if self._as_json else f"{self._mark(place, 0, 1)}error: {problem}"
            self._waiting[place, 0] = f"{row}\n"
            return
        for turn in ((place, answer) for answer in range(self._answers)):
            self._turns.append(turn)
            self._pieces[turn], self._told[turn], self._text[turn] = Pieces(self._tokenizer, prompt), 0, ""
            self._waiting[turn] = "" if self._as_json else self._mark(*turn, self._answers) + (text if self._echo else "")

    def _mark(self, prompt: int, answer: int, answers: int) -> str:
        which = f"{self._number + prompt + 1}" + (f".{answer + 1}" if answers > 1 else "")
        return f"[{which}] " if self._several else ""

    def add(self, prompt: int, answer: int, id_: int) -> None:
        """Adds a token to an answer."""
        self._write((prompt, answer), self._pieces[prompt, answer].add(id_))
        self._told[prompt, answer] += 1

    def end(self, found: Any) -> None:
        """Finishes an answer."""
        turn = found.prompt, found.answer
        for id_ in found.tokens[self._told[turn] :]:
            self.add(*turn, id_)
        self._write(turn, self._pieces[turn].end())
        self._ended.add(turn)
        if self._as_json:
            line, answer = self._number + found.prompt + 1, found.answer + 1
            fields = {"line": line, "answer": answer, "prompt": self._texts[found.prompt], "text": self._text[turn]}
            fields |= {"tokens": found.tokens, "score": found.score}
            self._waiting[turn] = json.dumps(versioned("generate", fields), ensure_ascii=False)
        self._waiting[turn] += "\n"

    def ready(self) -> str:
        """Returns the text that can be printed now."""
        text = ""
        while self._turns:
            turn = self._turns[0]
            text, self._waiting[turn] = text + self._waiting[turn], ""
            if turn not in self._ended:
                break
            self._turns.pop(0)
        return text

    def _write(self, turn: tuple[int, int], piece: str) -> None:
        self._text[turn] += piece
        if not self._as_json:
            self._waiting[turn] += piece
