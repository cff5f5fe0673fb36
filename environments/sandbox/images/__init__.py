"""Images: content-addressed layers from folders, OCI layouts and Python requirements, shared read-only by sandboxes."""

from environments.sandbox.images.layers import ImageError, ImageLimits
from environments.sandbox.images.sources import DirectorySource, OciSource, RequirementsSource, Source
from environments.sandbox.images.store import Collected, Image, ImageStore

__all__ = ["Collected", "DirectorySource", "Image", "ImageError", "ImageLimits", "ImageStore", "OciSource", "RequirementsSource", "Source"]
