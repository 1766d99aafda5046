"""Processes that reply to messages: ports, training backends and benchmark rows.

`Child` asks and `serve` replies. They exchange plain data (`wire`), so a reply cannot run code in
the asking process. Closing a `Program` ends everything that it started.
"""

from .child import Answer, Child
from .program import Program, cores, limited_threads, thread_share
from .serving import serve, serve_methods
from .text import innermost, message, printable, words

__all__ = [
    "GONE", "Answer", "Child", "Program", "cores", "innermost", "limited_threads", "message", "printable", "serve", "serve_methods",
    "thread_share", "words",
]  # fmt: skip

GONE = 141  # exit code of a command whose output nobody reads
