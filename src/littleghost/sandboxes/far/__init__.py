"""Sandboxes whose files and programs are somewhere else, and the worker that serves them there.

::

    application                                  container, other machine, service
    FarSandbox ── Line ══════ frames ══════ Served ── a sandbox of that place

`sandbox` and `process` are the near half, `line` carries requests and answers, `wire` says how they look. `serving` is the far half: it
answers requests with any `Sandbox`. `worker` runs it in a guest that has nothing but Python, and `guest` brings it there.
"""
