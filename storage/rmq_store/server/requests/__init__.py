"""From a request to its processor: typed headers, bounded pools of threads, busy answers."""
