"""Runs every action of users in the three frameworks and writes docs/frameworks.md.

`make frameworks` is the command.
"""

import sys
import traceback
from importlib.metadata import version
from pathlib import Path

from evidence import made_by
from framework_actions import FRAMEWORKS, Action, Actions, actions_of

from rosettaformer.atomic import replacing

VERSIONS = {"torch": ("torch",), "tf": ("tensorflow-cpu", "keras"), "jax": ("jax", "flax")}


def table(framework: str, actions: list[Action]) -> list[str]:
    """The section of a framework: a table of every topic."""
    used = ", ".join(f"{package} {version(package)}" for package in VERSIONS[framework])
    counts = [sum(action.outcome.startswith(word) for action in actions) for word in ("works", "refused", FRAMEWORKS[framework])]
    lines = [f"## {FRAMEWORKS[framework]}", "", f"{used}: {counts[0]} work, {counts[1]} are refused, {counts[2]} the framework gets wrong."]
    for topic in dict.fromkeys(action.topic for action in actions):
        lines += ["", f"### {topic}", "", "| action | outcome |", "|---|---|"]
        lines += [row(action) for action in actions if action.topic == topic]
    return [*lines, ""]


def row(action: Action) -> str:
    return f"| {action.name} | {action.outcome} |".replace("\n", " ")


HEAD = f"""# The ports in their frameworks

{made_by("frameworks")}
The page has what users do with the ports, action by action. Each action is run, and its numbers are compared with the reference's; an
action that is neither right nor refused stops the command. *refused* quotes the error. If the framework itself gets an action wrong, its
stock layers were run beside the port and give the same. An action runs on a CPU unless it says otherwise.

Unpadding needs stacks whose parts are all the port's own. With an adapter of `peft` or `nnx.LoRA`, a parametrised weight, a hook or a
layer of one's own the numbers are the same, and padding is computed; `enable_lora` of Keras keeps unpadding.
"""


def page(found: dict[str, Actions]) -> str:
    """The whole page."""
    return "\n".join([HEAD, *(line for framework, actions in found.items() for line in table(framework, actions))])


def main(path: str) -> int:
    """Runs every action and writes the page. Returns 1 where an outcome is another one."""
    found = {framework: actions for framework in FRAMEWORKS if (actions := actions_of(framework)) is not None}
    failed = 0
    for actions in found.values():
        for action in actions:
            try:
                action.check()
            except Exception:
                failed += 1
                print(f"{action.framework}: {action.name}", traceback.format_exc(), file=sys.stderr)
    if failed or len(found) < len(FRAMEWORKS):
        print(f"{failed} actions have another outcome; {len(FRAMEWORKS) - len(found)} frameworks are not installed", file=sys.stderr)
        return 1
    with replacing(Path(path)) as temporary:
        temporary.write_text(page(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
