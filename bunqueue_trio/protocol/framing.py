"""Length-prefixed frames: bytes in, bodies out. Knows nothing of what the bodies mean."""

from struct import Struct

from bunqueue_trio.errors import FrameTooLargeError

MAX_FRAME_BYTES = 67_108_864  # 64 MiB: the cap of the wire, both ways
_HEADER_BYTES = 4
_SMALL_PIECE_BYTES = 4_096  # smaller pieces are gathered, so that a trickle of bytes costs no list entry for each
_read_length = Struct(">I").unpack_from


class FrameBuffer:
    """Cuts a byte stream into frame bodies. A frame is a 4-byte big-endian length and that many bytes.

    Attributes:
        max_frame_bytes: greatest length that is accepted; may be changed at any time and counts for the next header.
        fault: set once a header announced more; everything after that header is ignored from then on.

    Cost: linear in the bytes fed, however they are cut; a large piece is copied once, when its frame is complete.
    """

    __slots__ = ("_head", "_missing_bytes", "_pieces", "_stored_bytes", "fault", "max_frame_bytes")

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self.max_frame_bytes = max_frame_bytes
        self.fault: FrameTooLargeError | None = None
        self._head = b""  # a header of which only 1 to 3 bytes are here
        self._missing_bytes = 0  # what the begun body still lacks; 0: no body has begun
        self._pieces: list[bytes | bytearray] = []
        self._stored_bytes = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Take the next bytes of the stream; return the bodies they complete, in order.

        Frames in front of an oversize header are returned as well; `fault` tells of it afterwards.
        """
        if self.fault is not None:
            return []
        if self._missing_bytes:
            if len(data) < self._missing_bytes:
                self._store(data)
                return []
            used = self._missing_bytes
            return self._cut(data, used, [self._finish(data, used)])
        if self._head:
            data = self._head + data
            self._head = b""
        elif len(data) >= _HEADER_BYTES:
            # A client that waits for each reply sends one frame at a time: no loop for it.
            (length,) = _read_length(data)
            if length == len(data) - _HEADER_BYTES and length <= self.max_frame_bytes:
                return [data[_HEADER_BYTES:]]
        return self._cut(data, 0, [])

    @property
    def buffered_bytes(self) -> int:
        """How many bytes of an incomplete frame are held, its header included."""
        if self._missing_bytes:
            return _HEADER_BYTES + self._stored_bytes
        return len(self._head)

    @property
    def has_partial(self) -> bool:
        """True while a frame has begun, by a header byte at least, and is not complete."""
        return bool(self._missing_bytes or self._head)

    def _cut(self, data: bytes, start: int, bodies: list[bytes]) -> list[bytes]:
        """Append the complete frames of *data* from *start* on; keep the rest."""
        size = len(data)
        append = bodies.append
        max_frame_bytes = self.max_frame_bytes
        while size - start >= _HEADER_BYTES:
            (length,) = _read_length(data, start)
            if length > max_frame_bytes:
                self.fault = FrameTooLargeError(length, max_frame_bytes)
                return bodies
            start += _HEADER_BYTES
            end = start + length
            if end > size:
                self._missing_bytes = length
                if start < size:
                    self._store(data[start:])
                return bodies
            append(data[start:end])
            start = end
        self._head = data[start:]
        return bodies

    def _store(self, piece: bytes) -> None:
        size = len(piece)
        self._missing_bytes -= size
        self._stored_bytes += size
        if size >= _SMALL_PIECE_BYTES:
            self._pieces.append(piece)
        elif self._pieces and type(self._pieces[-1]) is bytearray:
            self._pieces[-1] += piece
        else:
            self._pieces.append(bytearray(piece))

    def _finish(self, data: bytes, used: int) -> bytes:
        """Join the stored pieces and the first *used* bytes of *data* to the body they complete."""
        body = b"".join((*self._pieces, memoryview(data)[:used]))
        self._pieces = []
        self._missing_bytes = self._stored_bytes = 0
        return body
