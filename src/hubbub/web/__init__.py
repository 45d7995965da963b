"""What a browser and a script see of a hub: pages and a JSON API, as an ASGI application."""
