"""Who may ask for what: users and their rights, signatures of requests, changes by administrators, TLS."""
