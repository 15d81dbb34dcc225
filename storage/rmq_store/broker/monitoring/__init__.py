"""Questions of operators: lag, metrics, traces, losses, active consumers, offset resets."""
