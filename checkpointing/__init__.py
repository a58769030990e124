"""What survives: the closed list of state, checkpoints on disk, peer transfer, the resume decision and digests."""
