"""All messages can be reviewed as one text."""

from messages.collect import RECORDED, SOURCE, messages, text


def test_recorded_messages_are_up_to_date() -> None:
    """`python -m tests.messages.collect` records them. Read the differences aloud."""
    assert RECORDED.read_text() == text()


def test_message_and_hint_are_printed_on_two_lines() -> None:
    long = [
        message
        for path in sorted(SOURCE.rglob("*.py"))
        for message in messages(path)
        if message.count("\n") > 1
    ]
    assert long == []
