"""Commands of `verfedgnn` that research adds, one module each."""
