"""All messages that users can see, collected in messages.txt."""
