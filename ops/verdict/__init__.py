"""Did a run keep its promises? Judged from its event logs alone."""
