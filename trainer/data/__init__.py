"""Everything between text on a disk and a batch of tokens: data sets, token stores, sample order, loader."""
