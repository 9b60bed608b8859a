#!/usr/bin/env python3
"""Writes the seed corpora of the fuzz targets, from tests/vectors. Run it from anywhere; existing files stay."""
import hashlib
import json
import pathlib

HERE = pathlib.Path(__file__).parent
VECTORS = HERE.parent / "tests" / "vectors"
BODIES = {  # (request, is answer) -> the byte by which the target `bodies` chooses
    (34, False): 0, (38, True): 1, (46, False): 2, (203, True): 3, (204, True): 4, (200, False): 5, (201, True): 6,
    (300, True): 7, (105, True): 8, (106, True): 9, (206, True): 10, (41, False): 11, (41, True): 12, (21, True): 13,
    (202, True): 14, (208, True): 15, (220, False): 16, (103, False): 17, (28, True): 18,
}
LONGEST = 2500


def frames():
    for path in sorted(VECTORS.glob("rocketmq-*.json")):
        whole = json.loads(path.read_text())
        for entry in whole if isinstance(whole, list) else whole["vectors"]:
            if "frame_hex" in entry:
                request = entry.get("answers", entry.get("request_code", entry["code"]))
                yield request, bytes.fromhex(entry["frame_hex"])


def put(target, data, limit):
    folder = HERE / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    if 0 < len(data) <= LONGEST and sum(1 for _ in folder.iterdir()) < limit:
        (folder / hashlib.sha1(data).hexdigest()[:16]).write_bytes(data)


def main():
    seen = set()
    for request, frame in frames():
        header = int.from_bytes(frame[5:8], "big")
        answer = b'"flag":1' in frame[8:8 + header]
        shape = (request, answer, frame[4])
        body = frame[8 + header:]
        if (request, answer) in BODIES:
            put("bodies", bytes([BODIES[request, answer]]) + body, 60)
        if shape in seen:
            continue
        seen.add(shape)
        put("frame", b"\x07" + frame + frame, 30)
        put("command", frame[4:], 90)
        if request in (11, 12, 33, 39, 361, 320):
            put("records", body, 40)
        if body[:1] in (b"{", b"["):
            put("json", body, 60)
        if request in (10, 310) and not answer:
            put("bodies", b"\x13" + body, 80)
    for vector in json.loads((VECTORS / "rocketmq-wire.json").read_text())["vectors"]:
        data = bytes.fromhex(vector.get("hex", ""))
        kind = vector["kind"]
        if kind == "frame":
            put("command", data[4:], 120)
        elif kind in ("stored_message", "pull_body", "batch_body", "blank_record"):
            put("records", data, 60)
        elif kind == "properties":
            put("properties", data, 60)
        elif kind == "json_body":
            put("json", vector["text"].encode(), 80)
    for habit in (b"{,'a':1,,b:[.5,NaN,0x1],}", b'{{"a":1}:{},/*x*/"c":"\\x41\\u00"}', b'["\\ud83d\\ude00","\\ud800"]', b"//x\n[1 , ]"):
        put("json", habit, 90)
    put("properties", b"TAGS\x01A\x02KEYS\x01a b\x02WAIT\x01true\x02UNIQ_KEY\x010A0000051267251A8A1D0000002A0001\x02", 60)


main()
