"""Runs the tests of one Python file and writes each result as a line of JSON, as it is known:
unittest_json.py RESULTS_FILE TEST_FILE [PATTERN]. Lines are {"name", "result": passed|failed|skipped, "detail"}; the last
has the result "end", so that a file that leaves by the back door is noticed."""

import importlib.util
import json
import os
import sys
import unittest


class JsonResult(unittest.TestResult):
    def __init__(self, path, module):
        super().__init__()
        self.path, self.module = path, module

    def line(self, name, result, detail=""):
        with open(self.path, "a", encoding="utf-8") as f:
            f.write(json.dumps({"name": name, "result": result, "detail": detail}) + "\n")

    def write(self, test, result, detail=""):
        name = test.id().replace(f"{self.module}.", "")
        self.line(name, result, detail)
        print(f"{result}: {name}" + (f"\n{detail}" if detail else ""), flush=True)

    def startTest(self, test):
        super().startTest(test)
        self.subtest_failed = False

    def addSuccess(self, test):
        if not self.subtest_failed:
            self.write(test, "passed")

    def addFailure(self, test, err):
        self.write(test, "failed", self._exc_info_to_string(err, test))

    addError = addFailure

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.subtest_failed = True
            self.write(subtest, "failed", self._exc_info_to_string(err, test))

    def addSkip(self, test, reason):
        self.write(test, "skipped", reason)

    def addExpectedFailure(self, test, err):
        self.write(test, "skipped", "is expected to fail")

    def addUnexpectedSuccess(self, test):
        self.write(test, "failed", "was expected to fail, and passed")


def main():
    results, path = sys.argv[1:3]
    open(results, "w", encoding="utf-8").close()
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    name = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    loader = unittest.TestLoader()
    if len(sys.argv) > 3:
        loader.testNamePatterns = [f"*{sys.argv[3]}*"]
    result = JsonResult(results, name)
    loader.loadTestsFromModule(module).run(result)
    result.line(name, "end")


if __name__ == "__main__":
    main()
