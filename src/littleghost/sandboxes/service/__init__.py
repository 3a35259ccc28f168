"""A service that gives each client a sandbox of this machine.

`app` speaks to clients, as an ASGI application; `leases` keeps their sandboxes; `tokens` says who they are; `server` runs it all.
`littleghost.sandboxes.remote` is the client.
"""
