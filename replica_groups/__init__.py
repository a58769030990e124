"""Everything inside one replica group, and its one door to the others: the seat."""

import os

os.environ.setdefault("RUST_LOG", "warn")  # read by torchft when it is imported; its information lines are many a step
