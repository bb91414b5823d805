"""User alignment before training, as two state machines around the arithmetic of `privacy.id_matching`.

1. Every party turns its ids into pseudonyms. keyed: the first party draws a key and seals it for each other one. ecdh: each
   list of blinded ids passes the keyholders, sealed, and returns to its owner.
2. All send their pseudonyms to the coordinator, which matches them and draws the rows in random order.
3. Every party learns the row of each of its own users and the number of rows.
"""
