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
peer.finish()
