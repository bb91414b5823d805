"""What keeps values from being seen: projection, gradient mechanisms, accounting."""
