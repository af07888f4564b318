"""OpenTelemetry's own messages read what --trace-file writes: one ExportTraceServiceRequest a line.   trace_file.py LLMQ

Needs opentelemetry-proto in $LLMQ_PEERS/load (python3 -m venv, then pip install opentelemetry-proto). Where it is missing the script says so and leaves with 77. Ids are
hexadecimal in OTLP's JSON, where JSON of protobuf has base64, so they are turned first; any other field that is not OTLP's is an error of the parser.
"""
import base64, json, os, pathlib, subprocess, sys, tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent / "serve")]
from peer import TINYSTORIES, expect, finish, run_in
from server import Server

run_in("load", ["opentelemetry.proto.collector.trace.v1.trace_service_pb2"], "opentelemetry-proto")
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

program = sys.argv[1]


def spans_of(path):
    spans = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            request = json.loads(line)
            for span in request["resourceSpans"][0]["scopeSpans"][0]["spans"]:
                for key in {"traceId", "spanId", "parentSpanId"} & set(span):
                    span[key] = base64.b64encode(bytes.fromhex(span[key])).decode()
            parsed = json_format.ParseDict(request, ExportTraceServiceRequest())
            resource = {each.key: each.value for each in parsed.resource_spans[0].resource.attributes}
            expect(resource["service.name"].string_value == "llmq", f"a line of {os.path.basename(path)} is of service llmq")
            spans += parsed.resource_spans[0].scope_spans[0].spans
    return spans


with tempfile.TemporaryDirectory() as work:
    subprocess.run([program, "quantize", "--method", "rtn", "--model", TINYSTORIES, "--output", f"{work}/out", "--trace-file", f"{work}/quantize.jsonl", "--quiet", "--json"], check=True, stdout=subprocess.DEVNULL)
    *blocks, command = spans_of(f"{work}/quantize.jsonl")
    expect([block.name for block in blocks] == ["model.layers.0", "model.layers.1"], f"a span for each block: {[block.name for block in blocks]}")
    expect(all(block.parent_span_id == command.span_id and block.trace_id == command.trace_id and len(block.trace_id) == 16 for block in blocks), "blocks are children of the command")
    expect(all(command.start_time_unix_nano <= block.start_time_unix_nano < block.end_time_unix_nano <= command.end_time_unix_nano for block in blocks), "and lie within it")
    failed = subprocess.run([program, "inspect", f"{work}/nowhere", "--trace-file", f"{work}/failed.jsonl"], capture_output=True)
    (span,) = spans_of(f"{work}/failed.jsonl")
    expect(failed.returncode == 2 and span.status.code == span.status.STATUS_CODE_ERROR and "nowhere" in span.status.message, f"a command that fails says why: {span.status.message}")
    server = Server(program, TINYSTORIES, "--trace-file", f"{work}/serve.jsonl")
    server.ask("POST", "/v1/completions", {"prompt": "Once", "max_tokens": 4}, {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"})
    expect(server.stop() == 0, "the server left with 0")
    request, _ = spans_of(f"{work}/serve.jsonl")
    said = {each.key: each.value for each in request.attributes}
    expect(request.kind == request.SPAN_KIND_SERVER and request.trace_id == b"\xab" * 16 and request.parent_span_id == b"\xcd" * 8, "a request is a child of its traceparent")
    expect(said["gen_ai.usage.completion_tokens"].int_value == 4 and said["gen_ai.latency.e2e"].double_value > 0, "and says what it was")
finish()
