"""What users do with a port in its framework: each action is run, and its numbers are compared with the reference's.

An action works, or it is refused by an error that says why, or the framework itself gets it wrong and its stock layers do the same.
"""

import importlib
import importlib.util
import inspect
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

__all__ = ["FRAMEWORKS", "Action", "Actions", "actions_of"]

FRAMEWORKS = {"torch": "PyTorch", "tf": "Keras and TensorFlow", "jax": "JAX and Flax"}
PACKAGES = {"torch": "torch", "tf": "tensorflow", "jax": "jax"}


@dataclass(frozen=True)
class Action:
    """One thing that users do with the port of a framework.

    topic: the section of the table. name: the action in the framework's own words, as Markdown. run: does it, and raises AssertionError
    where a number is wrong. refused: a part of the message of the error that it raises, empty where it raises none. stock: what the
    framework itself gets wrong, empty where it does not; run then shows that its stock layers do the same. sample: whether the first tier
    runs it.
    """

    framework: str
    topic: str
    name: str
    run: Callable[[], None]
    refused: str = ""
    stock: str = ""
    sample: bool = False

    @property
    def outcome(self) -> str:
        """What the table says of it."""
        if self.stock:
            return f"{FRAMEWORKS[self.framework]} itself: {self.stock}"
        return f"refused: {self.refused}" if self.refused else "works"

    def check(self) -> None:
        """Runs it. Raises AssertionError where its outcome is another one."""
        if not self.refused:
            return self.run()
        try:
            self.run()
        except AssertionError:
            raise
        except Exception as error:
            if self.refused not in str(error):
                raise AssertionError(f"{self.name}: the error must say {self.refused!r}; got {error}") from error
        else:
            raise AssertionError(f"{self.name} must be refused: {self.refused}; it ran")


Run = Callable[..., object]


class Actions(list[Action]):
    """The actions of one framework. given: what makes an argument of an action, by its name; `folder` is an empty one."""

    def __init__(self, framework: str, **given: Callable[[], object]) -> None:
        super().__init__()
        self.framework, self.given = framework, given

    def topic(self, name: str, around: Callable[[Run], Run] = lambda run: run) -> "Topic":
        return Topic(self, name, around)

    def call(self, run: Run, **more: Callable[[], object]) -> None:
        """Calls it with the arguments that it has no defaults for, made anew."""
        with tempfile.TemporaryDirectory() as folder:
            given = self.given | more | {"folder": lambda: Path(folder)}
            needed = [name for name, each in inspect.signature(run).parameters.items() if each.default is each.empty]
            run(**{name: given[name]() for name in needed})


@dataclass(frozen=True)
class Topic:
    """A section of the table. Its methods add an action, as decorators or with the function. around: makes of that what is called."""

    actions: Actions
    name: str
    around: Callable[[Run], Run]

    def works(self, name: str, run: Run | None = None, *, sample: bool = False) -> Any:
        """The function does what users do, and asserts the numbers."""
        return self._add(name, run, sample=sample)

    def refused(self, name: str, message: str, run: Run | None = None, *, sample: bool = False) -> Any:
        """The function raises an error whose message has this part."""
        return self._add(name, run, refused=message, sample=sample)

    def stock(self, name: str, what: str, run: Run | None = None, *, sample: bool = False) -> Any:
        """The function asserts that the port and the framework's stock layers are wrong alike. what: what is wrong, in a few words."""
        return self._add(name, run, stock=what, sample=sample)

    def _add(self, name: str, run: Run | None, **rest: Any) -> Any:
        if run is None:
            return lambda run: self._add(name, run, **rest)
        if any(name == action.name for action in self.actions):
            raise ValueError(f"the names of actions must differ; {name!r} occurs twice")
        self.actions.append(Action(self.actions.framework, self.name, name, partial(self.actions.call, self.around(run)), **rest))
        return run


def actions_of(framework: str) -> Actions | None:
    """All actions of the framework; None where it is not installed."""
    if not importlib.util.find_spec(PACKAGES[framework]):
        return None
    return importlib.import_module(f"{__name__}.{framework}_actions").ACTIONS
