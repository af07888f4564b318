"""OpenSSF Model Signing and llmq on each other's signatures.   model_signing_check.py PROGRAM WORK"""
import os, subprocess, sys
import peer

program, work = sys.argv[1:3]
model_signing = os.path.join(os.path.dirname(sys.executable), "model_signing")
private, public, other = (os.path.join(work, name) for name in ("private.pem", "public.pem", "other.pem"))
output = os.path.join(work, "output")
signature = os.path.join(output, "model.sig")


def run(*arguments):
    return subprocess.run(arguments, capture_output=True, text=True)


def theirs(*arguments):
    """Whether model_signing verifies the output."""
    return run(model_signing, "verify", "key", output, "--signature", signature, "--public_key", *arguments).returncode == 0


def ours(key):
    return run(program, "verify", output, "--key", key).returncode


for key, pub in ((private, public), (os.path.join(work, "second.pem"), other)):
    subprocess.run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key], check=True)
    subprocess.run(["openssl", "ec", "-in", key, "-pubout", "-out", pub], check=True, capture_output=True)
peer.llmq(program, "quantize", "--method", "rtn", "--model", peer.TINYSTORIES, "--output", output)

peer.llmq(program, "sign", output, "--key", private)
peer.expect(theirs(public), "model_signing verifies what llmq signed")
peer.expect(not theirs(other), "model_signing refuses llmq's signature with another key")

os.remove(signature)
done = run(model_signing, "sign", "key", output, "--private_key", private, "--signature", signature)
peer.expect(done.returncode == 0, "model_signing signs an output of llmq " + done.stderr[-300:])
peer.expect(ours(public) == 0, "llmq verifies what model_signing signed")
peer.expect(ours(other) == 1, "llmq refuses model_signing's signature with another key")

with open(os.path.join(output, "config.json"), "a") as config:
    config.write("\n")
peer.expect(ours(public) == 1, "llmq sees a changed file behind model_signing's signature")
peer.expect(not theirs(public), "model_signing sees it too")

# A .gguf with its report and its manifest, among files that are not its own; and a file that model_signing signed by itself.
gguf = os.path.join(work, "m.gguf")
peer.llmq(program, "quantize", "--method", "rtn", "--model", peer.TINYSTORIES, "--output", gguf, "--set", "format=gguf", "--set", "scheme=q8_0")
peer.llmq(program, "sign", gguf, "--key", private)
beside = ("verify", "key", work, "--signature", gguf + ".sig", "--ignore_unsigned_files", "--public_key")
peer.expect(run(model_signing, *beside, public).returncode == 0, "model_signing verifies a .gguf that llmq signed")
peer.expect(run(model_signing, *beside, other).returncode != 0, "model_signing refuses it with another key")
os.remove(gguf + ".sig")
done = run(model_signing, "sign", "key", gguf, "--private_key", private, "--signature", gguf + ".sig")
peer.expect(done.returncode == 0, "model_signing signs a .gguf " + done.stderr[-300:])
peer.expect(run(program, "verify", gguf, "--key", public).returncode == 0, "llmq verifies a .gguf that model_signing signed")
with open(gguf, "ab") as file:
    file.write(b"x")
peer.expect(run(program, "verify", gguf, "--key", public).returncode == 1, "llmq sees a changed .gguf")
peer.finish()
