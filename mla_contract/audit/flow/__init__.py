"""An abstract interpreter that follows metadata through the shared layer, backends and builders."""
