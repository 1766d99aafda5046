"""Converts the plain-text equations of docstrings to MathML.

    equation := sum (relation sum)*        relations: = != <= >= < > |
    sum      := [sign] quotient (sign quotient)*
    quotient := product (" / " product | " * " product)*
    product  := factor+                    factors side by side; `sum_i`, `log`, `max` and others are applied to what follows them
    factor   := power ("/" power)*         without spaces, so that `x/2 y` is half of x times y, and `x y / 2` half of the product
    power    := atom, then `_index`, `^exponent`, `'`, `(arguments)` and `[index]`, each without a space before it
    atom     := name, number, `...`, `(equation, ...)`, `[equation]`, or the absolute value `|sum|`

Greek letters are written by name, `m_hat` has a hat, `dx` is the gradient of x. Names of several letters are upright.
"""

import html
import itertools
import re
from dataclasses import dataclass
from typing import NamedTuple

GREEK = {"alpha": "α", "beta": "β", "epsilon": "ε", "pi": "π", "Phi": "Φ", "phi": "φ", "inf": "∞"}
SIGNS = {"-": "−", "+": "+", "+-": "±"}
RELATIONS = {"=": "=", "|": "|", "!=": "≠", "<=": "≤", ">=": "≥", "<": "&lt;", ">": "&gt;"}
OPERATORS = {"sum": "∑"}  # applied to everything that follows in the product
APPLIED = ("log", "exp", "max", "min", "mean", "sqrt", "tanh", "sin", "cos", "erf")  # applied to the factor that follows
_GRADIENT = re.compile(r"d([A-Za-z]|table|scale|offset|logits)")
_TOKEN = re.compile(r"\s*(\d+(?:\.\d+)?|[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)*|\.\.\.|!=|<=|>=|\+-|[-+*/^_=<>|()\[\],'])")
_AXES = re.compile(r"([a-z]|\d+|\.\.\.|\([a-z ]+\))( ([a-z]|\d+|\([a-z ]+\)))*")
_CODE = re.compile(r"[A-Za-z_][\w.]*(\(\))?|.*([:@&\"]|->|[a-z]\.[a-z<]|[( ]\*+[a-z]).*")


def kind(span: str) -> str:
    """Returns the kind of a text in backticks: axes (`b t d`), code (a name), or equation."""
    return "axes" if _AXES.fullmatch(span) else "code" if _CODE.fullmatch(span) else "equation"


def mathml(text: str, block: bool = False) -> str:
    """Returns the equation as a `math` element, which also contains its plain text. block: on a separate line.

    Raises ValueError if the text is not an equation.
    """
    parser = _Parser(text)
    markup = parser.equation().markup
    if parser.at < len(parser.tokens):
        raise parser.wrong("an operator")
    note = f'<annotation encoding="text/plain">{html.escape(text)}</annotation>'
    style = ' displaystyle="true"' if block else ""
    return f"<math{style}><semantics><mrow>{markup}</mrow>{note}</semantics></math>"


class _Token(NamedTuple):
    text: str
    spaced: bool  # whether a space comes before it


@dataclass(frozen=True)
class _Part:
    """markup: one element. inner: contents of a bracketed group. word: a multi-letter name."""

    markup: str
    inner: str = ""
    word: bool = False

    @property
    def bare(self) -> str:
        return self.inner or self.markup


class _Parser:
    def __init__(self, text: str) -> None:
        self.text, self.at, self.linear = text, 0, False
        self.tokens: list[_Token] = []
        end = 0
        while end < len(text.rstrip()):
            found = _TOKEN.match(text, end)
            if not found:
                raise ValueError(f"an equation must be made of names, numbers and operators; got {text[end:].strip()[:20]!r} in {text!r}")
            self.tokens.append(_Token(found[1], found.start(1) > end))
            end = found.end()

    def wrong(self, wanted: str) -> ValueError:
        return ValueError(f"{self.text!r} must have {wanted} at {self.peek() or 'its end'!r}")

    def peek(self, tight: bool = False) -> str:
        """Returns the next token, or empty; with `tight`, only if no space precedes it."""
        if self.at >= len(self.tokens) or (tight and self.tokens[self.at].spaced):
            return ""
        return self.tokens[self.at].text

    def take(self, wanted: str = "") -> str:
        if not self.peek() or (wanted and self.peek() != wanted):
            raise self.wrong(repr(wanted) if wanted else "an operand")
        self.at += 1
        return self.tokens[self.at - 1].text

    def equation(self) -> _Part:
        parts = [self.sum().markup]
        while self.peek() in RELATIONS:
            parts += [_mo(RELATIONS[self.take()]), self.sum().markup]
        return _Part(_row(parts))

    def sum(self) -> _Part:
        parts = [_mo(SIGNS[self.take()], "prefix")] if self.peek() in SIGNS else []
        parts.append(self.quotient().markup)
        while self.peek() in SIGNS:
            parts += [_mo(SIGNS[self.take()]), self.quotient().markup]
        return _Part(_row(parts))

    def quotient(self) -> _Part:
        left = self.product()
        while self.peek() in ("/", "*"):
            over, right = self.take() == "/", self.product()
            left = self.fraction(left, right) if over else _Part(_row([left.markup, _mo("×"), right.markup]))
        return left

    def fraction(self, left: _Part, right: _Part) -> _Part:
        if self.linear:
            return _Part(_row([left.markup, '<mo lspace="0" rspace="0">/</mo>', right.markup]))
        return _Part(f"<mfrac>{left.bare}{right.bare}</mfrac>")

    def product(self) -> _Part:
        parts = [self.factor()]
        while self.begins_factor():
            parts.append(self.factor())
        if len(parts) == 1:
            return parts[0]
        markup = [parts[0].markup]
        for before, after in itertools.pairwise(parts):
            space = ".22em" if before.word or after.word else ".06em"
            markup += [f'<mo lspace="{space}" rspace="0">&#x2062;</mo>', after.markup]
        return _Part(_row(markup), word=parts[-1].word)

    def begins_factor(self) -> bool:
        return bool(re.match(r"[\w(\[]|\.\.\.", self.peek()))

    def factor(self) -> _Part:
        left = self.power()
        while self.peek(tight=True) == "/" and self.at + 1 < len(self.tokens) and not self.tokens[self.at + 1].spaced:
            self.take()
            left = self.fraction(left, self.power())
        return left

    def power(self) -> _Part:
        token = self.take()
        if token in ("(", "["):
            self.at -= 1
            close = {"(": ")", "[": "]"}[token]
            inner = self.within(token, close)
            return self.raised(_Part(_row([_mo(token), inner, _mo(close)]), inner if token == "(" else ""))
        if token == "|":
            inner = self.sum().markup
            self.take("|")
            return self.raised(_Part(_row([_mo("|", "prefix"), inner, _mo("|", "postfix")])))
        if token == "...":
            return _Part(_mo("⋯"))
        if token[0].isdigit():
            number = _Part(f"<mn>{token}</mn>")
            if re.match(r"[A-Za-z]", self.peek(tight=True)):
                return _Part(_row([number.markup, self.power().markup]))
            return self.raised(number)
        if not token[0].isalpha():
            self.at -= 1
            raise self.wrong("an operand")
        return self.named(token)

    def named(self, name: str) -> _Part:
        """Returns a variable, or a function and its argument."""
        base, _, index = name.partition("_")
        if base in OPERATORS or base in APPLIED:
            return self.applied(base, index)
        if self.peek(tight=True) == "(":
            function = f"<msub>{_name(base)}{_index(index)}</msub>" if len(index) == 1 else _name(name)
            return self.raised(_Part(_row([function, _mo("&#x2061;"), self.arguments()]), word=len(name) > 1))
        part = _variable(base, index)
        if not index and self.peek(tight=True) == "_":
            self.take()
            part, index = _Part(f"<msub>{part.markup}{self.grouped()}</msub>", word=part.word), "group"
        if self.peek(tight=True) == "[":
            part = _Part(_row([part.markup, self.power().markup]), word=part.word)
        return self.raised(part, bool(index) and index != "hat")

    def applied(self, name: str, index: str) -> _Part:
        if name == "sqrt":
            under = self.within("(", ")") if self.peek(tight=True) == "(" else self.power().bare
            return self.raised(_Part(f"<msqrt>{under}</msqrt>"))
        below = _index(index) if index else ""
        if not index and self.peek(tight=True) == "_":
            self.take()
            below = self.grouped()
        if name in OPERATORS:
            sign = f'<mo largeop="true" movablelimits="true">{OPERATORS[name]}</mo>'
            sign = f"<munder>{sign}{below}</munder>" if below else sign
            return _Part(_row([sign, self.product().markup]), word=True)
        function = f"<msub>{_name(name)}{below}</msub>" if below else _name(name)
        if self.peek(tight=True) == "^":
            self.take()
            function = f"<msup>{function}{self.exponent()}</msup>"
        if self.peek(tight=True) == "(":
            return self.raised(_Part(_row([function, _mo("&#x2061;"), self.arguments()]), word=True))
        if not self.begins_factor():
            return _Part(function, word=True)
        return _Part(_row([function, '<mo lspace=".17em" rspace="0">&#x2061;</mo>', self.power().markup]), word=True)

    def arguments(self) -> str:
        return _row([_mo("("), self.within("(", ")"), _mo(")")])

    def raised(self, part: _Part, subscripted: bool = False) -> _Part:
        """Returns a part with its superscripts: primes and an exponent."""
        above = ""
        while self.peek(tight=True) == "'":
            self.take()
            above += "<mo>′</mo>"
        if self.peek(tight=True) == "^":
            self.take()
            above += self.exponent()
        if not above:
            return part
        above = _row([above]) if above.count("<") > 2 else above
        if subscripted and part.markup.startswith("<msub>"):
            return _Part(f"{part.markup.replace('<msub>', '<msubsup>', 1).removesuffix('</msub>')}{above}</msubsup>", word=part.word)
        return _Part(f"<msup>{part.markup}{above}</msup>", word=part.word)

    def exponent(self) -> str:
        """Returns a bracketed group, a name with its index, or a number such as `-1/2`."""
        if self.peek() == "(":
            return self.grouped()
        sign = _mo(SIGNS[self.take()], "prefix") if self.peek() == "-" else ""
        token = self.take()
        if not token[0].isdigit():
            base, _, index = token.partition("_")
            return _row([sign, _variable(base, index).markup]) if sign else _variable(base, index).markup
        number = f"<mn>{token}</mn>"
        if sign and self.peek(tight=True) == "/":
            self.take()
            number += f'<mo lspace="0" rspace="0">/</mo><mn>{self.take()}</mn>'
        return _row([sign, number]) if sign else number

    def grouped(self) -> str:
        """Returns a bracketed group with inline quotients."""
        before, self.linear = self.linear, True
        inner = self.within("(", ")")
        self.linear = before
        return inner

    def within(self, opening: str, closing: str) -> str:
        """Returns the contents of brackets; round ones may hold several, with commas."""
        self.take(opening)
        parts = [self.equation().markup]
        while opening == "(" and self.peek() == ",":
            parts += [_mo(self.take()), self.equation().markup]
        self.take(closing)
        return _row(parts) if len(parts) > 1 else parts[0]


def _row(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 and parts[0].startswith("<mrow>") else f"<mrow>{''.join(parts)}</mrow>"


def _mo(sign: str, form: str = "") -> str:
    return f'<mo form="{form}">{sign}</mo>' if form else f"<mo>{sign}</mo>"


def _name(name: str) -> str:
    return f"<mi>{GREEK.get(name, name)}</mi>"


def _index(index: str) -> str:
    """Returns an index; the letters of a sum over several axes are separated."""
    if index.isdigit():
        return f"<mn>{index}</mn>"
    letters = index if re.fullmatch(r"[abceghklstv]{2,3}", index) else (index,)
    return _name(index) if len(letters) == 1 else _row([_name(letter) for letter in letters])


def _variable(base: str, index: str) -> _Part:
    if found := re.fullmatch(r"([A-Za-z])(\d+)", base):
        base, index = found[1], index or found[2]
    elif found := _GRADIENT.fullmatch(base):
        inner = _variable(found[1], index)
        return _Part(_row(['<mi mathvariant="normal">d</mi>', inner.markup]), word=inner.word)
    word = len(base) > 1 and base not in GREEK
    if index == "hat":
        return _Part(f'<mover accent="true">{_name(base)}<mo stretchy="false">^</mo></mover>', word=word)
    return _Part(f"<msub>{_name(base)}{_index(index)}</msub>" if index else _name(base), word=word)
