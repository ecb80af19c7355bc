"""`plan watch`: how a run stands against its plan."""

from app.commands.watch.command import command

__all__ = ["command"]
