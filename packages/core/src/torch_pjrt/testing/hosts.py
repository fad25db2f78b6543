"""A host with the plugins that a test gives it: what it says of a plugin is what it would say in a process.

host = Host({"mine": my_plugin.plugin})
assert host.chosen_device("MINE").name == "MINE"
"""

from torch_pjrt.plugin.host import Host

__all__ = ["Host"]
