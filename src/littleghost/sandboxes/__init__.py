"""What an agent may do with files and processes: the contract, and one module a backend."""
