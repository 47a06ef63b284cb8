"""A server with OpenAI's HTTP interface: requests, the engine that generates for them, and the application that answers."""
