#!/usr/bin/env python3
"""Runs the smoke tier under Oclgrind: no error in any runner's log, and the same bytes as on PoCL.

usage: oclgrind.py ETALON        exits 77 where Oclgrind or PoCL is not installed
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ETALON = sys.argv[1]
ROOT = pathlib.Path(__file__).resolve().parent.parent
OCLGRIND = pathlib.Path("/usr/lib/oclgrind/liboclgrind-rt-icd.so")
POCL = pathlib.Path("/etc/OpenCL/vendors/pocl.icd")


def run(driver, results, *options, **extra):
    env = dict(os.environ, OCL_ICD_VENDORS=str(driver), **extra)
    done = subprocess.run([ETALON, "run", "-o", results, *options], env=env, capture_output=True, text=True)
    lines = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else [{}]
    return done, lines[0], {line["id"]: line for line in lines[1:]}


def oclgrind(folder, *options):
    """The smoke tier, and the text of each runner's log."""
    folder.mkdir()
    out = run(OCLGRIND, folder / "results.jsonl", "--guards", "off", *options,
              OCLGRIND_LOG=str(folder / "log"), OCLGRIND_DATA_RACES="1", OCLGRIND_CHECK_API="1")
    return *out, [path.read_text() for path in sorted(folder.glob("log.*"))]


def main(scratch):
    done, header, simulated, logs = oclgrind(scratch / "plain", "--tier", "smoke")
    print("oclgrind:", done.stdout.strip().splitlines()[-1])
    print("probe:", header["devices"][0]["probe"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(logs) == 1, f"{len(logs)} logs: one a runner was expected"
    assert logs[0] == "", logs[0][:2000]

    done, _, native = run(POCL, scratch / "pocl.jsonl", "--tier", "smoke")
    assert done.returncode == 0, done.stdout + done.stderr
    assert simulated.keys() == native.keys()
    for name, result in simulated.items():
        assert result.get("outputs") == native[name].get("outputs"), f"{name}: other bytes than on PoCL"
        for check in ("replay", "identical"):
            outcome = result.get("checks", {}).get(check, {}).get("outcome", "held")
            assert outcome == "held", f"{name}: {check} {outcome}"
    print(f"{len(simulated)} runs, the same digests as on PoCL; the log is empty")

    # An empty log means something only if a fault fills it: without its barriers the kernel races.
    kernels = scratch / "kernels"
    shutil.copytree(ROOT / "ocl", kernels, ignore=lambda _, names: [n for n in names if not n.endswith((".cl", ".clh"))])
    text = (kernels / "gqa_av.cl").read_text()
    assert text.count("barrier(CLK_LOCAL_MEM_FENCE);") == 2
    (kernels / "gqa_av.cl").write_text(text.replace("barrier(CLK_LOCAL_MEM_FENCE);", ""))
    _, _, _, logs = oclgrind(scratch / "racing", "--port", f"ocl:{kernels}", "-k", "gqa_av/edges/one-hot/*")
    assert any("data race" in log for log in logs), "a kernel without barriers left the log empty"
    print("without barriers the log names data races")


if __name__ == "__main__":
    if not OCLGRIND.exists() or not POCL.exists():
        print("skipped: Oclgrind or PoCL is not installed")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        main(pathlib.Path(folder))
