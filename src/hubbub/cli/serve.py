"""`hubbub serve`: reads the options into settings and runs the server until it is told to stop."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from hubbub.cli import complete
from hubbub.config import sources
from hubbub.config.settings import DEFAULT_DATA
from hubbub.runtime import logs
from hubbub.runtime.collector import loading

app = typer.Typer(add_completion=False)


@app.command()
def serve(
    listen: Annotated[
        list[str] | None,
        typer.Option(metavar="ADDR:PORT", help="Listen here instead; may be repeated."),
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="DIR", help=f"Data directory [{DEFAULT_DATA}].")
    ] = None,
    configuration: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", metavar="FILE", help="Read settings: .toml ours, else mosquitto's."
        ),
    ] = None,
    port: Annotated[
        list[int] | None,
        typer.Option("--port", "-p", metavar="PORT", help="Short for --listen 127.0.0.1:PORT."),
    ] = None,
    setting: complete.Setting = None,
    switch_socket: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Speak message-switch on this Unix socket too."),
    ] = None,
    app_place: Annotated[
        str | None,
        typer.Option("--app", metavar="MODULE:NAME", help="An ASGI application, on these ports."),
    ] = None,
    cluster: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="A NATS server that joins hubs to one; may be repeated."),
    ] = None,
    cluster_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of this node in the cluster.")
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(metavar="N", help="So many processes as one hub, for N cores [1]."),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log each connection and what it does.")
    ] = False,
) -> None:
    overrides = list(setting or [])
    addresses = [*(listen or ()), *(f"127.0.0.1:{number}" for number in port or ())]
    if addresses:
        overrides.append("listen=" + ",".join(addresses))
    if data is not None:
        overrides.append(f"data={data}")
    if switch_socket is not None:
        overrides.append(f"queue.socket={switch_socket}")
    if cluster:
        overrides.append("cluster.url=" + ",".join(cluster))
    if cluster_name is not None:
        overrides.append(f"cluster.name={cluster_name}")
    if processes is not None:
        overrides.append(f"processes={processes}")
    if verbose:
        overrides.append("log.level=debug")
    read = partial(sources.load, configuration, overrides, os.environ)
    with logs.held() as notes:
        settings = read(starts=True)
    # The hub's libraries, once the options are known to be good.
    with loading():
        from hubbub.processes import leave, run

    code = run(settings, reload=read, app=app_place, notes=notes)
    # An application may have something to do at the end of the process, a profiler has.
    if app_place is None and sys.getprofile() is None:
        leave(code)
    raise typer.Exit(code)
