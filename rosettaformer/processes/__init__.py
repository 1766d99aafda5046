"""Processes that answer questions: of ports, of training backends and of benchmark rows.

`Child` is the asking side and `serve` the answering one. What passes between them is plain data (`wire`), so that no answer can run code
in the process that asks. A `Program` is a process of which nothing is left when it is closed.
"""

from .child import Answer, Child
from .program import Program, cores, limited_threads
from .server import serve, serve_methods
from .text import innermost, message, printable, words

__all__ = ["Answer", "Child", "Program", "cores", "innermost", "limited_threads", "message", "printable", "serve", "serve_methods", "words"]
