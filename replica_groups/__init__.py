"""Everything inside one replica group, and its one door to the others: the seat."""
