"""Finds the source line of an instruction in its code object's location table (PEP 626, PEP 657).

CPython 3.11 to 3.14 use this format, which Objects/locations.md describes (see also `advance` and
`get_line_delta` in Objects/codeobject.c). Each entry begins with a byte 1_cccc_lll, where c is the
kind, and l + 1 is the length of the code in two-byte units. All other bytes of the entry are below
128.
"""

_NO_LINE, _LONG, _NO_COLUMNS, _ONE_LINE_0, _ONE_LINE_2 = 15, 14, 13, 10, 12
_UNIT = 2


def line_number(table: bytes, first_line: int, offset: int) -> int:
    """Return the line number of the instruction at an offset in the code, or 0 if it is unknown.

    Args:
        table: `co_linetable`, which isn't trusted.
        first_line: `co_firstlineno`.
        offset: the offset in bytes from the first instruction.
    """
    line, end, at = first_line, 0, 0
    while 0 <= at < len(table):
        head = table[at]
        if not head & 128:
            return 0
        kind = (head >> 3) & 15
        if kind in (_LONG, _NO_COLUMNS):
            line += _signed(table, at + 1)
        elif _ONE_LINE_0 <= kind <= _ONE_LINE_2:
            line += kind - _ONE_LINE_0
        end += ((head & 7) + 1) * _UNIT
        if offset < end:
            return line if kind != _NO_LINE and 0 < line < 1 << 31 else 0
        at += 1
        while at < len(table) and not table[at] & 128:
            at += 1
    return 0


def _signed(table: bytes, at: int) -> int:
    """Decode a signed variable-length number. Each byte contains 6 bits of the number, and the bit
    with the value 64 means that more bytes follow. The lowest bit of the result is the sign.
    """
    number = shift = 0
    while at < len(table) and shift <= 30:
        number |= (table[at] & 63) << shift
        if not table[at] & 64:
            break
        shift += 6
        at += 1
    return -(number >> 1) if number & 1 else number >> 1
