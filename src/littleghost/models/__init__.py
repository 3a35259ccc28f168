"""Who answers: the contract, and one module a provider."""
