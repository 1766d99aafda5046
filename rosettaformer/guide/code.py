"""Code blocks on a page: origin and syntax highlighting."""

import functools
import re
from dataclasses import dataclass
from typing import Any

LIGHT, DARK = "xcode", "github-dark"
FOLDED = re.compile(r'(?:<span class="go">[^\n]*: not covered [^\n]*</span>\n){4,}')  # console output that is folded


@dataclass(frozen=True)
class Code:
    """A block of code.

    origin: its file, by which tests find and run it: a file of the packages
    (`impl_torch/attention.py`) or in `rosettaformer/guide/snippets`. language: a Pygments name,
    such as console or toml. caption: the line above it. label: for screen readers; by default the
    caption or origin. repaired: the steps (number, fragment) of the page that fix a deliberate bug
    in it.
    """

    text: str
    origin: str
    language: str = "python"
    caption: str = ""
    label: str = ""
    repaired: tuple[tuple[str, str], ...] = ()


@functools.cache
def highlighted(code: Code) -> Any:
    """Returns the block as HTML."""
    from markupsafe import Markup, escape
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import get_lexer_by_name

    inner = _slim(highlight(code.text.rstrip("\n") + "\n", get_lexer_by_name(code.language, stripnl=False), HtmlFormatter(nowrap=True)))
    inner = FOLDED.sub(r'<span class="folded">\g<0></span>', inner) if code.language == "console" else inner
    steps = " and ".join(f'<a href="#{escape(fragment)}">step {escape(number)}</a>' for number, fragment in code.repaired)
    warning = f' <strong class="wrong">deliberately wrong: fixed in {steps}</strong>' if steps else ""
    caption = f"<figcaption>{escape(code.caption)}{warning}</figcaption>" if code.caption else ""
    label = escape(code.label or code.caption or code.origin)
    return Markup(
        f'<figure class="code" data-origin="{escape(code.origin)}">{caption}'
        f'<pre tabindex="0" aria-label="{label}"><code class="language-{code.language}">{inner}</code></pre></figure>'
    )


@functools.cache
def lines(text: str) -> tuple[Any, ...]:
    """Returns each line of a Python file as HTML."""
    from markupsafe import Markup
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import get_lexer_by_name

    inner = _slim(highlight(text, get_lexer_by_name("python", stripnl=False, ensurenl=False), HtmlFormatter(nowrap=True)))
    return tuple(Markup(line) for line in inner.rstrip("\n").split("\n"))


def _slim(markup: str) -> str:
    """Removes spans without color, which are a third of the markup."""
    return re.sub(r'<span class="(?:n|p|w)">([^<]*)</span>|<span class="o">(\.)</span>', r"\1\2", markup)


def styles() -> str:
    """Returns the CSS colors of code, light and dark."""
    from pygments.formatters import HtmlFormatter

    light, dark = (HtmlFormatter(style=style, nobackground=True) for style in (LIGHT, DARK))
    chosen = dark.get_style_defs(':root[data-theme="dark"] .code code')
    preferred = dark.get_style_defs(':root:not([data-theme="light"]) .code code')
    return f"{light.get_style_defs('.code code')}\n{chosen}\n@media (prefers-color-scheme: dark) {{\n{preferred}\n}}\n"


def ticked(text: str) -> Any:
    """Returns a sentence as HTML: text between backticks is code."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))
