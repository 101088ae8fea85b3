"""The animated picture is the replay: both lanes on one clock, the assisted one ahead."""

from __future__ import annotations

import io

from PIL import Image, ImageChops

from playground.views import replay_file
from tests.ui import fakes

HALVES = {"standard": (28, 196, 388, 486), "assisted": (412, 196, 772, 486)}


def test_the_assisted_lane_is_done_while_the_other_still_writes():
    comparison = fakes.comparison(tokens=40)
    data = replay_file.build_gif(comparison, "Prompt lookup", "example.org")
    picture = Image.open(io.BytesIO(data))
    frames = []
    for number in range(picture.n_frames):
        picture.seek(number)
        frames.append(picture.convert("RGB"))
    end = frames[-1]
    alike = {
        name: [ImageChops.difference(frame.crop(box), end.crop(box)).getbbox() is None for frame in frames].index(True)
        for name, box in HALVES.items()
    }
    assert 0 < alike["assisted"] < alike["standard"]
    assert picture.info["loop"] == 0


def test_text_that_the_font_lacks_is_dots_and_never_boxes():
    assert replay_file._shown("a தமி\n") == "a ···\n"


def test_a_lane_without_rounds_has_a_picture():
    import dataclasses

    comparison = fakes.comparison(tokens=4)
    standard, other = comparison.lanes
    empty = dataclasses.replace(comparison, lanes=(standard, dataclasses.replace(other, rounds=(), finish="stopped")))
    assert replay_file.build_gif(empty, other.lane.name).startswith(b"GIF89a")
