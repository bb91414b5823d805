"""Messages and their encoding as bytes."""
