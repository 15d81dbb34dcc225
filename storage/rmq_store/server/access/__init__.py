"""Users and their rights, signatures of requests, and changes for administrators."""
