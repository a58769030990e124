"""Starting, watching and replacing the processes of a run on one machine."""
