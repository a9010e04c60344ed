"""One module per question that the bench answers; each returns values of `result`."""
