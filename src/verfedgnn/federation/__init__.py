"""A federation across organisations: who belongs to it, what they agreed on, and how they know each other."""
