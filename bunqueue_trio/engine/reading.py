"""How a command asks for what memory does not hold."""

from bunqueue_trio.errors import BunqueueError
from bunqueue_trio.model.questions import Question


class ReadNeededError(BunqueueError):
    """Only the file can answer, as it is at one moment between two commits.

    Execute again with `State.holds_file` set, while no flush is under way: then ``question`` says what to read. Execute
    once more with that question, answered, as `State.answer`.
    """

    def __init__(self, question: Question | None = None) -> None:
        super().__init__("the file must be read")
        self.question = question
