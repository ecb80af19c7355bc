"""`plan calibrate`: the command and its answer."""

from app.commands.calibrate.command import command

__all__ = ["command"]
