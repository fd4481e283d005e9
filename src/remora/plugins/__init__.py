"""Plugins: what one is, and finding those that are installed."""

from remora.plugins.discovery import GROUP, Found, Registry, registry
from remora.plugins.plugin import Plugin

__all__ = ["GROUP", "Found", "Plugin", "Registry", "registry"]
