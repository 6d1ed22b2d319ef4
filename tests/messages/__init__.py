"""All messages that users can see, in one text: messages.txt."""
