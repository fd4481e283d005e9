"""Native plugins: libraries of C++ passes, dialects and operations, probed before they load."""
