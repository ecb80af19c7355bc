"""`plan audit`: the command, its answer, and how that is told."""

from app.commands.audit.command import command

__all__ = ["command"]
