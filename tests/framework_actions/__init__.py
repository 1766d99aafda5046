"""What users do with a port in its framework: each action is run, and its numbers are compared with the reference's.

An action works, or it is refused by an error that says why, or the framework itself gets it wrong and its stock layers do the same.
"""

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

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


class Actions(list[Action]):
    """The actions of one framework, to which its decorators add."""

    def __init__(self, framework: str) -> None:
        super().__init__()
        self.framework = framework

    def works(self, topic: str, name: str, *, sample: bool = False) -> Callable[[Callable[[], None]], Callable[[], None]]:
        """The function does what users do, and asserts the numbers."""
        return self._add(topic, name, sample=sample)

    def refused(self, topic: str, name: str, message: str, *, sample: bool = False) -> Callable[[Callable[[], None]], Callable[[], None]]:
        """The function raises an error whose message has this part."""
        return self._add(topic, name, refused=message, sample=sample)

    def stock(self, topic: str, name: str, what: str, *, sample: bool = False) -> Callable[[Callable[[], None]], Callable[[], None]]:
        """The function asserts that the port and the framework's stock layers are wrong alike. what: what is wrong, in a few words."""
        return self._add(topic, name, stock=what, sample=sample)

    def _add(self, topic: str, name: str, **rest: object) -> Callable[[Callable[[], None]], Callable[[], None]]:
        def add(run: Callable[[], None]) -> Callable[[], None]:
            if any(name == action.name for action in self):
                raise ValueError(f"the names of actions must differ; {name!r} occurs twice")
            self.append(Action(self.framework, topic, name, run, **rest))  # type: ignore[arg-type]
            return run

        return add


def actions_of(framework: str) -> Actions | None:
    """All actions of the framework; None where it is not installed."""
    if not importlib.util.find_spec(PACKAGES[framework]):
        return None
    return importlib.import_module(f"{__name__}.{framework}_actions").ACTIONS
