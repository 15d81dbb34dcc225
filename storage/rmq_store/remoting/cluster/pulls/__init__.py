"""The parts of a pulled range: its lanes with the frames that came through them, and the checks of these frames."""
