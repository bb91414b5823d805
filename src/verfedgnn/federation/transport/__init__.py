"""How bytes travel between organisations."""
