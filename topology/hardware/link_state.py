"""When a network card carries messages, in the words of Linux: the one rule of every check of a node.

A port of the fabric (InfiniBand, RoCE) counts where its ``state`` is active, an Ethernet card where its
``operstate`` is up, or where its driver does not tell. Words: ``ib_verbs.h`` and
``Documentation/ABI/testing/sysfs-class-net`` of the kernel.
"""

ACTIVE_PORT = "4:"
"""How the ``state`` of an active port begins: 1: DOWN, 2: INIT, 3: ARMED, 4: ACTIVE, 5: ACTIVE_DEFER."""
UP = ("up", "unknown", "")
"""``operstate`` of a card that counts; empty where there is no such file."""
