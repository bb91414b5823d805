"""What carries the messages."""
