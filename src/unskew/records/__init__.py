"""What a run writes down: its rows, its checkpoints, the private state of clients, and what each file must
hold."""
