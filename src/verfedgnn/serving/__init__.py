"""Recommendations from a run: scored in batches, for newcomers by folding in, over HTTP, as a table, and as a page for people.

`catalogue`, `top`, `tastes`, `folding`, `reasons` and `table` need nothing but the run; `app` and what is around it need the
extra `serve`.
"""
