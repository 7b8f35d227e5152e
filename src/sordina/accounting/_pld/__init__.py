"""Privacy loss distributions: losses, dominating pairs and their composition, for `sordina.accounting.pld`."""
