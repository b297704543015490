"""Prints the golden bytes of chat/src/record/tensorboard_golden.txt: one record a line, in hexadecimal.

Made with tensorboard 2.21.0, protobuf 7.36.2. Run: python tests/tensorboard_golden.py > chat/src/record/tensorboard_golden.txt
"""

import io

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.record_writer import RecordWriter


def record(event: event_pb2.Event) -> str:
    buffer = io.BytesIO()
    RecordWriter(buffer).write(event.SerializeToString(deterministic=True))
    return buffer.getvalue().hex()


def scalar(tag: str, value: float) -> summary_pb2.Summary.Value:
    return summary_pb2.Summary.Value(tag=tag, simple_value=value)


start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
summary = summary_pb2.Summary(value=[scalar("loss", 1.5), scalar("objective/kl", -0.25)])
print(record(event_pb2.Event(wall_time=1.25, file_version="brain.Event:2")))
print(record(event_pb2.Event(wall_time=1.25, step=301, session_log=start)))
print(record(event_pb2.Event(wall_time=2.5, step=300, summary=summary)))
