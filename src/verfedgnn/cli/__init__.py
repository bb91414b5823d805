"""The command line, which turns words into requests to the other rooms and prints what they return."""
