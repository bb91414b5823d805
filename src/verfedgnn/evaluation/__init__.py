"""What joining gains each party, how two runs differ, and whether the later one may replace the earlier."""
