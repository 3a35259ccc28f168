"""What a model may call: the contract, tools made from functions, and the tools of a sandbox."""
