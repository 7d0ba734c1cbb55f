"""A terminal as small as rich needs it: what is on the screen after everything that was written to it."""

import re

_PIECES = re.compile(r"\x1b\[(?P<numbers>[?\d;]*)(?P<word>[A-Za-z])|(?P<plain>[^\x1b])", re.DOTALL)


class Screen:
    """Lines of text and a cursor.

    Args:
        text: everything that was written.
    """

    def __init__(self, text):
        self.lines, self.row, self.column, self.cursor = [""], 0, 0, True
        end = 0
        for piece in _PIECES.finditer(text):
            assert piece.start() == end, f"what does {text[end : end + 20]!r} mean?"
            end = piece.end()
            self._write(piece["plain"]) if piece["plain"] else self._control(piece["word"], piece["numbers"])

    def _write(self, letter):
        if letter == "\r":
            self.column = 0
        elif letter == "\n":
            self.row += 1
            self.lines += [""] * (self.row + 1 - len(self.lines))
        else:
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + letter + line[self.column + 1 :]
            self.column += 1

    def _control(self, word, numbers):
        if word == "A":
            self.row -= int(numbers)
            assert self.row >= 0, "the cursor left the screen"
        elif word == "K":
            self.lines[self.row] = ""
        elif word in "hl" and numbers == "?25":
            self.cursor = word == "h"
        else:
            assert word == "m", f"what does {word!r} mean?"

    @property
    def text(self):
        return "\n".join(line.rstrip() for line in self.lines).strip()
