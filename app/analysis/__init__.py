"""Questions about plans that take several estimates or searches."""
