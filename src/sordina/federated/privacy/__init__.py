"""What happens to an update, and where: at the client, or at a trusted server."""
