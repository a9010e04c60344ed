"""What a process under the shim says to it: notes for the log, and where counting begins.

Without the shim every function does nothing, so that a client need not know. A client in another
language writes to the file in `$KILLPROOF_NOTES`, each note with one write call; the notes
`killproof:arm` and `killproof:disarm` do what the functions do.
"""

import ctypes


class Shim:
    """The shim under this process, if there is one."""

    def __init__(self) -> None:
        """Look for it among the symbols of this process."""
        process = ctypes.CDLL(None)
        self.is_loaded = hasattr(process, "killproof_note")
        if self.is_loaded:
            self._note = process.killproof_note
            self._note.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
            self._note.restype = None
            self._arm, self._disarm = process.killproof_arm, process.killproof_disarm

    def note(self, text: bytes) -> None:
        """Put a note into the log, after every call that this thread has made."""
        if self.is_loaded:
            self._note(text, len(text))

    def arm(self) -> None:
        """Count calls and apply rules in this process from here on."""
        if self.is_loaded:
            self._arm()

    def disarm(self) -> None:
        """Stop counting; rules apply no longer."""
        if self.is_loaded:
            self._disarm()
