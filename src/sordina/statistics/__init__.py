"""Numbers under a budget: counts, means, quantiles and tables of a file's persons, and answers randomised at home."""
