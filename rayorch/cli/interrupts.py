"""Ctrl-C while a command is being loaded: one line and exit code 130.

An exception would be lost there, or become another one: in the middle of an import, in code that is made by `exec` (of
which Python remembers that it was interrupted, whoever catches it) or in a module written in C.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

EXIT_CODE = 130
SAID = "interrupted"


def end_at_once(said: str = SAID) -> None:
    """From now on Ctrl-C ends this process with that line. Not where the signal is ignored or somebody else's."""
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _Ending(said))


def raise_again() -> None:
    """From now on Ctrl-C is KeyboardInterrupt again, where `end_at_once` has changed that."""
    if isinstance(signal.getsignal(signal.SIGINT), _Ending):
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def loading(said: str = SAID) -> Iterator[None]:
    """Within it Ctrl-C ends this process with that line: around what a command imports."""
    end_at_once(said)
    try:
        yield
    finally:
        raise_again()


class _Ending:
    """The handler of the signal. Nothing has been done yet that would have to be undone."""

    def __init__(self, said: str) -> None:
        self._said = said

    def __call__(self, number: int, frame: object) -> None:
        os.write(2, f"{self._said}\n".encode())
        os._exit(EXIT_CODE)
