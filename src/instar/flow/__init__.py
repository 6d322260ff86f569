"""What happens, in order: serve_turn, (judge), train_step, publish. Pure but for the ports it is given."""
