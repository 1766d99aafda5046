"""Ports that compute nothing: what they do instead, when, and for which component. Each is a Python file."""

import itertools
import random

COMPONENTS = (
    "layer_norm",
    "softmax",
    "embedding",
    "logits",
    "feed_forward",
    "multi_head_attention",
    "positional_encoding",
    "cross_entropy",
)

# Actions of a hostile port; `sleep` is killed with it.
ACTIONS = {
    "raise": "raise ValueError('no')",
    "raise what is no Exception": "raise type('Own', (BaseException,), {})('no')",
    "raise KeyboardInterrupt": "raise KeyboardInterrupt",
    "raise GeneratorExit": "raise GeneratorExit",
    "raise StopIteration": "raise StopIteration",
    "raise MemoryError": "raise MemoryError",
    "raise what says nothing": "raise Mute()",
    "raise what has no message": "raise type('Own', (Exception,), {'__str__': lambda self: 7})()",
    "raise a surrogate": r"raise ValueError('\ud800 \udfff')",
    "raise terminal escapes": r"raise ValueError('\x1b[2J\x1b]0;title\x07\r\nall conform\x00\x9b31m \u202eesrever')",
    "raise markup": "raise ValueError('[/] [red] [link=file:///etc/passwd]x[/link] </td><script>')",
    "raise megabytes": "raise ValueError('x' * 5_000_000)",
    "raise not covered that lies": "raise type('Own', (NotCovered,), {'__str__': lambda self: Mute()})()",
    "exit": "sys.exit(0)",
    "exit at once": "os._exit(0)",
    "exit with a code": "os._exit(3)",
    "die": "os.kill(os.getpid(), signal.SIGSEGV)",
    "abort": "os.abort()",
    "stop": "os.kill(os.getpid(), signal.SIGSTOP)",
    "recurse": "recurse()",
    "recurse without limit": "sys.setrecursionlimit(10**9); recurse()",
    "hang": "time.sleep(600)",
    "hang busily": "spin()",
    "hang deaf": "[signal.signal(number, signal.SIG_IGN) for number in (1, 2, 13, 15)]; time.sleep(600)",
    "hang in a thread": "threading.Thread(target=time.sleep, args=(600,)).start()",
    "fork": "os.fork() or time.sleep(600)",
    "fork and go on": "os.fork()",
    "fork many": "[os.fork() or time.sleep(600) for _ in range(20)]",
    "fork and die": "os.fork() and os._exit(1); time.sleep(600)",
    "fork away": "away()",
    "multiprocessing": "multiprocessing.get_context('fork').Process(target=time.sleep, args=(600,)).start()",
    "another session": "subprocess.Popen(['sleep', '600'], start_new_session=True)",
    "hold the pipes": "subprocess.Popen(['sleep', '600'], pass_fds=[number for number in range(3, 12) if is_open(number)])",
    "garbage": "write(os.urandom(1000))",
    "endless garbage": "forever(b'garbage ' * 1000)",
    "zeros": "forever(bytes(100000))",
    "a pickle": "write(b'rsf1' + pickle.dumps(Bomb()))",
    "a pickle of old": "data = pickle.dumps(('pass', Bomb())); write(len(data).to_bytes(8, 'little') + data)",
    "a verdict": "write(b''.join(map(bytes, wire.pack(('pass', ''))[0])) * 3)",
    "no answer": "write(b''.join(map(bytes, wire.pack(('outputs', {'output': {}}))[0])) * 3)",
    "a greeting": "write(b''.join(map(bytes, wire.pack(('ready', {}))[0])) * 3)",
    "a promise": "write(b'rsf1' + (0xffff).to_bytes(4, 'little'))",
    "a header of huge arrays": 'write(header(\'{"value": ["array", 0], "arrays": [["float64", [1000000000000]]]}\'))',
    "a header of an impossible shape": 'write(header(\'{"value": ["array", 0], "arrays": [["float64", [-1, 0.5]]]}\'))',
    "a header of depth": "write(header('{\"value\": ' + '[' * 100000))",
    "a header of digits": "write(header('{\"value\": ' + '9' * 100000 + ', \"arrays\": []}'))",
    "flood": "forever(b'flood ' * 10000, (2,))",
    "flood for a moment": "[os.write(2, b'x' * 65536) for _ in range(500)]",
    "close everything": "os.closerange(0, 64)",
    "close the output": "os.close(1); os.close(2)",
    "limits": "resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0)); resource.setrlimit(resource.RLIMIT_CPU, (1, 1))",
    "an alarm": "signal.setitimer(signal.ITIMER_REAL, 0.01)",
    "patch the judge": "patch()",
    "patch the language": "builtins.len = lambda value: 1; builtins.isinstance = lambda value, kind: True",
    "another folder": "os.chdir('/'); os.environ.clear(); sys.path.clear()",
    "random state": "np.random.seed(0)",
}
MOMENTS = ("import", "describe", "attributes", "answer", "second", "after", "exit")

# Outputs of a hostile port, in addition to those of test_runner.py, from the case and an array of the right shape and dtype if known.
VALUES = {
    "zero": "0 * y",
    "one": "0 * y + 1",
    "a constant": "y",
    "infinity": "0 * y + np.inf",
    "random": "np.random.default_rng().standard_normal(y.shape)",
    "the same random": "np.random.default_rng(0).standard_normal(y.shape)",
    "its input": "x",
    "its input again": "np.array(x, dtype=np.float64)",
    "a view of its input": "np.broadcast_to(x, x.shape)",
    "its parameters": "dict(case.parameters)",
    "its inputs": "dict(case.inputs)",
    "the case": "case",
    "not implemented": "NotImplemented",
    "text": "'output'",
    "bytes": "b'output'",
    "a number": "1.0",
    "a list": "y.tolist()",
    "an array of text": "np.array(['a'])",
    "an array of records": "np.zeros(3, dtype=[('a', 'f8')])",
    "an array of dates": "np.zeros(3, dtype='M8[s]')",
    "complex": "y + 1j",
    "other bytes": "y.astype('>f8')",
    "another precision": "y.astype(np.longdouble)",
    "no elements": "y[:0]",
    "no axes": "np.float64(0)",
    "many axes": "y.reshape((1,) * 40 + y.shape)",
    "a bomb": "Bomb()",
    "a bomb by name": "{'output': Bomb()}",
    "a bomb as a name": "{Bomb(): y}",
    "names that are none": "{1: y, None: y}",
    "names of escapes": r"{'\x1b[2J': y, '\ud800': y}",
    "a name that lies": "{Equal('output'): y}",
    "many names": "{f'n{i}': y for i in range(20000)}",
    "a mapping of itself": "itself()",
    "a mapping without end": "Endless()",
    "deep": "deep(y)",
    "an array that lies": "(0 * y).view(Liar)",
    "what claims to be an array": "Claim()",
    "what becomes an array": "Becomes(y)",
    "a tuple that lies": "Pair((y, y, y))",
    "huge in parts": "{f'n{i}': np.broadcast_to(np.float64(0), (10**4, 10**4)) for i in range(1000)}",
    "large": "np.zeros(5_000_000)",
    "a buffer that changes": "changing(y)",
    "a read-only array": "frozen(y)",
    "a function": "lambda: y",
    "a module": "np",
}

# Further declarations of a hostile port.
LIES = {
    "modes that are a number": "modes = 5",
    "no modes": "modes = ()",
    "modes of escapes": r"modes = ('\x1b[2J\ud800',)",
    "modes of objects": "modes = (Bomb(),)",
    "modes that lie": "modes = (Equal('eager'),)",
    "many modes": "modes = tuple(map(str, range(100000)))",
    "long modes": "modes = ('x' * 10**7,)",
    "dtypes that lie": "dtypes = (Equal('float31'),)",
    "dtypes that are objects": "dtypes = (Bomb(),)",
    "a config of objects": "config = {'activation': Bomb()}",
    "a config that is an enumeration": "config = {'activation': enum.Enum('Act', {'RELU': 'relu'}, type=str).RELU}",
    "a config of an array": "config = {'epsilon': np.ones(3)}",
    "a config of NaN": "config = {'epsilon': float('nan')}",
    "a config of a huge number": "config = {'model_width': 10**100}",
    "a config of many layers": "config = {'encoder_layers': 10**12}",
    "a config too large to make": "config = {'source_vocabulary': 10**10}",
    "a config of large sizes": "config = {'model_width': 10**5, 'feed_forward_width': 10**5}",
    "a config of lists": "config = {'heads': [[1]]}",
    "a config of other names": "config = {Equal('heads'): 3, 'x\\x1b': 1}",
    "a config that is deep": "config = {'heads': deep(1)}",
    "a framework that is an object": "framework = Bomb()",
    "a framework without components": "framework = 'torch'",
    "a component that is a class": "globals()[COMPONENT] = Bomb",
    "a component that cannot be called": "globals()[COMPONENT] = 3",
    "null bytes": "\x00",
}

HEAD = '''
import atexit, builtins, enum, itertools, multiprocessing, os, pickle, resource, signal, subprocess, sys, threading, time, types
from collections.abc import Mapping
import numpy as np
from rosettaformer.judge import reference
from rosettaformer.ports import NotCovered
from rosettaformer.common.processes import wire

COMPONENT, CANARY = {component!r}, {canary!r}

class Bomb:
    """Whoever unpickles it leaves a file."""
    def __reduce__(self): return os.mkdir, (CANARY,)

class Mute(Exception):
    def __str__(self): raise Mute
    __repr__ = __str__

class Equal(str):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return hash("output")
    def __str__(self): return Equal("output")

class Liar(np.ndarray):
    shape = property(lambda self: (3, 5, 13))
    nbytes = property(lambda self: 0)
    def __eq__(self, other): return True
    def __sub__(self, other): return 0.0
    __rsub__ = __sub__
    def __array_ufunc__(self, *arguments, **named): return 0.0
    def __array_function__(self, *arguments, **named): return True
    def __reduce__(self): return os.mkdir, (CANARY,)
    def tobytes(self): return b""
    def copy(self): return self

class Claim:
    __class__ = np.ndarray
    dtype, shape, nbytes, size, ndim = np.dtype(float), (3, 5, 13), 0, 1, 3
    def __reduce__(self): return os.mkdir, (CANARY,)

class Becomes:
    def __init__(self, array): self.array = array
    def __array__(self, *arguments, **named): return self.array

class Pair(tuple):
    def __len__(self): return 2
    def __iter__(self): return iter((np.zeros(1),))

class Endless(Mapping):
    def __getitem__(self, name): return np.zeros(1)
    def __iter__(self): return map(str, itertools.count())
    def __len__(self): return 1

def deep(value):
    for _ in range(200): value = {{"a": value}}
    return value

def itself():
    mapping = {{}}
    mapping["a"] = mapping
    return mapping

def frozen(y):
    y.flags.writeable = False
    return y

def changing(y):
    def change():
        while True: y[...] = np.random.default_rng().random(y.shape)
    threading.Thread(target=change, daemon=True).start()
    return y

def recurse(): return recurse() + 1

def spin():
    while True: pass

def is_open(number):
    try: os.fstat(number)
    except OSError: return False
    return True

def away():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: time.sleep(600)
        os._exit(0)

def write(data, numbers=range(3, 12)):
    for number in filter(is_open, numbers):
        try: os.write(number, data)
        except OSError: pass

def forever(data, numbers=range(3, 12)):
    while True: write(data, numbers)

def header(text): return b"rsf1" + len(text).to_bytes(4, "little") + text.encode()

def patch():
    for name, module in list(sys.modules.items()):
        if name.startswith("rosettaformer.judge"):
            for part in ("compare", "judge", "equal", "measured", "named_outputs"):
                if hasattr(module, part): setattr(module, part, lambda *arguments, **named: "pass")

calls = []

def wrong(case):
    """Its first input, and an array that is no answer but has the shape and the dtype of one."""
    calls.append(case)
    x = next(value for value in case.inputs.values() if isinstance(value, np.ndarray))
    return x, np.full_like(next(iter(reference.answer(case).values())), 0.25)
'''


ASKED = """
asked = []

def __getattr__(name):
    asked.append(name)
    len(asked) == 1 and act()
    raise AttributeError(name)
"""


def source(kind: str, name: str, moment: str, component: str, canary: str) -> str:
    """Returns the source of a port that does this at that moment. canary: a folder that appears if anyone unpickles its messages."""
    head = HEAD.format(component=component, canary=canary)
    if kind == "lie":
        return f"{head}\ndef {component}(case):\n    return wrong(case)[1]\n\n{LIES[name]}\n"
    if kind == "value":
        return f"{head}\ndef {component}(case):\n    x, y = wrong(case)\n    return {VALUES[name]}\n"
    return f"{head}\ndef act(*arguments):\n    {ACTIONS[name]}\n{_when(moment, component)}"


def _when(moment: str, component: str) -> str:
    """Returns the rest of the port, which acts at that moment."""
    before = {
        "import": "act()",
        "describe": "class Config(dict):\n    def keys(self): return act() or dict.keys(self)\n\nconfig = Config(epsilon=1e-5)",
        "attributes": ASKED,
        "exit": "atexit.register(act)",
    }.get(moment, "")
    within = {"answer": "act()", "second": "len(calls) > 1 and act()", "after": "threading.Timer(0.02, act).start()"}.get(moment, "")
    return f"\n{before}\n\ndef {component}(case):\n    y = wrong(case)[1]\n    {within or 'pass'}\n    return y\n"


def generated(count: int) -> list[tuple[str, str, str, str]]:
    """Returns that many different ports (kind, name, moment, component), with every behavior at every moment among them."""
    rng = random.Random(0)
    kinds = [("action", name, moment) for name in ACTIONS for moment in MOMENTS]
    kinds += [("value", name, "answer") for name in VALUES] + [("lie", name, "import") for name in LIES]
    every = [(*kind, component) for kind, component in itertools.product(kinds, COMPONENTS)]
    rng.shuffle(every)
    first = {port[:3]: port for port in reversed(every)}
    chosen = [*first.values(), *(port for port in every if first[port[:3]] != port)]
    return chosen[:count]


# one of each kind
SAMPLE = [
    ("action", "fork and die", "answer", "layer_norm"),
    ("action", "hold the pipes", "after", "layer_norm"),
    ("action", "hang deaf", "import", "softmax"),
    ("action", "a verdict", "answer", "embedding"),
    ("action", "raise terminal escapes", "import", "embedding"),
    ("action", "raise markup", "answer", "logits"),
    ("action", "flood", "answer", "logits"),
    ("value", "an array that lies", "answer", "layer_norm"),
    ("value", "huge in parts", "answer", "layer_norm"),
    ("lie", "a config that is an enumeration", "import", "layer_norm"),
]
